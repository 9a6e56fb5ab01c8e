"""No handler of the script is replaced, none is left behind, and SIGTERM in a window saves it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .running import environment

HEAD = """
import ctypes, faulthandler, os, signal, sys, time
from moeprof.recording.signals import Termination, handler_of, kernel_action

libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
in_c = ctypes.cast(libc.abs, ctypes.c_void_p)
TERM = signal.SIGTERM

def in_force():
    return handler_of(kernel_action(TERM))

def terminate():
    os.kill(os.getpid(), TERM)
    time.sleep(0.2)

def save():
    time.sleep(saving_s)
    print("saved", flush=True)

saving_s = 0.1
termination = Termination(save)
termination.watch()
"""


def ended(code: str) -> tuple[int, str]:
    """Exit code and output of a process in which SIGTERM is watched and then `code` runs."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        timeout=60,
    )
    return done.returncode, done.stdout


def test_sigterm_in_the_window_saves_it_and_holds_the_training():
    code = "terminate(); termination.hold(); print('a further step'); time.sleep(9)"
    assert ended(code) == (-15, "saved\n")


def test_python_sees_no_handler():
    code = "print(signal.getsignal(TERM) is signal.SIG_DFL, in_force() != 0); termination.undo()"
    assert ended(code) == (0, "True True\n")


def test_after_the_window_the_default_is_back():
    code = "termination.undo(); print(in_force(), flush=True); terminate()"
    assert ended(code) == (-15, "0\n")


def test_a_window_after_the_first_is_watched_too():
    code = "termination.undo(); termination.watch(); terminate(); time.sleep(9)"
    assert ended(code) == (-15, "saved\n")


@pytest.mark.parametrize(
    "handled",
    [
        "libc.signal(TERM, in_c)",
        "signal.signal(TERM, lambda *_: None)",
        "signal.signal(TERM, signal.SIG_IGN)",
        "faulthandler.register(TERM, open(os.devnull, 'w'))",
    ],
)
def test_a_handler_that_comes_in_the_window_stays(handled):
    code = (
        f"{handled}; before = in_force(); termination.undo()\n"
        "terminate(); termination.watch(); termination.undo(); terminate()\n"
        "print(in_force() == before, termination.is_dying)"
    )
    assert ended(code) == (0, "True False\n")


def test_a_handler_that_is_put_over_ours_and_taken_away_leaves_one_that_dies():
    code = (
        "ours = in_force(); libc.signal(TERM, in_c); termination.undo()\n"
        "libc.signal(TERM, ours); terminate(); time.sleep(9)"
    )
    assert ended(code) == (-15, "")


def test_a_second_sigterm_ends_a_long_saving():
    code = "saving_s = 60; terminate(); print('one', flush=True); time.sleep(2)\nterminate()"
    assert ended(code + "; time.sleep(9)") == (-15, "one\n")


def test_the_same_sigterm_sent_to_group_and_process_saves():
    assert ended("terminate(); terminate(); time.sleep(9)") == (-15, "saved\n")


def test_a_failing_save_lets_the_process_die():
    code = "termination._save = lambda: 1 / 0\nterminate(); time.sleep(9)"
    assert ended(code) == (-15, "")


def test_a_forked_worker_dies_of_sigterm_as_ever_and_the_training_goes_on():
    code = (
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(30); os._exit(0)\n"
        "os.kill(pid, TERM); print(os.waitpid(pid, 0)[1]); time.sleep(0.2)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []), termination.is_dying)"
    )
    assert ended(code) == (0, "15\nset() False\n")
