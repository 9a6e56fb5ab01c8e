"""A standard output that is closed, or whose reader stops early, ends in no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest


def shell(line: str) -> subprocess.CompletedProcess[str]:
    code = "from moeprof.cli.main import main; main()"
    return subprocess.run(
        ["sh", "-c", line.replace("MOEPROF", f"{sys.executable} -c '{code}'")],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", ["--help", "models", "hardware --json"])
def test_a_closed_output_is_told_in_one_line(arguments):
    ended = shell(f"MOEPROF {arguments} >&-")
    assert ended.returncode == 1
    assert ended.stderr == (
        "moeprof: standard output: expected one that can be written, found it closed. "
        "Send it to a file or to /dev/null\n"
    )


def test_a_reader_that_stops_early_is_no_error_to_tell():
    ended = shell("MOEPROF hardware --json | head -c 1")
    assert (ended.stdout, ended.stderr) == ("{", "")
