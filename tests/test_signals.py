"""The suite runs in the background and under nohup as it does on a terminal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

IGNORED = (
    "import signal, subprocess, sys\n"
    "for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "sys.exit(subprocess.run(sys.argv[1:]).returncode)\n"
)
SHOWN = (
    "import signal\n"
    "numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)\n"
    "print([number.name for number in numbers if signal.getsignal(number) is signal.SIG_IGN])\n"
)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM], ids=lambda n: n.name
)
def test_no_signal_is_ignored_in_tests_or_in_what_they_start(number):
    assert signal.getsignal(number) is not signal.SIG_IGN
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_suite_whose_parent_ignores_signals_has_none_ignored():
    one = f"{__file__}::test_no_signal_is_ignored_in_tests_or_in_what_they_start"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one]
    done = subprocess.run([sys.executable, "-c", IGNORED, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
