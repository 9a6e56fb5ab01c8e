"""The line that says what a command is busy with: on a terminal after a second, nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping

import pytest
from builders.sessions import two_hosts

from moeprof.cli import progress
from moeprof.ingest.assemble import side_by_side

# A command whose work says where it is, then waits until the line was drawn (ten seconds at most).
SCRIPT = """
import sys, threading
from moeprof.cli import progress
progress._QUIET_S = float(sys.argv[1])
drawn = threading.Event()
show = progress.Work.show
def told(work):
    show(work)
    drawn.set()
progress.Work.show = told
with progress.working("reading the run") as work:
    work.counting("answering questions")(3, 16)
    if progress._is_watched() and float(sys.argv[1]) < 5:
        assert drawn.wait(10)
        if len(sys.argv) > 2:
            raise SystemExit("it failed")
print("the answer")
print("rich.live" in sys.modules)
"""


def on_a_terminal(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[str, str]:
    """What a script prints on stdout, a pipe, and on stderr, a terminal of 80 columns."""
    master, slave = pty.openpty()
    surroundings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **(env or {})}
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
        env=surroundings,
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        shown += piece
    out, _ = started.communicate(timeout=60)
    os.close(master)
    return out.decode(), shown.decode()


def test_a_long_work_is_shown_with_its_count_and_the_line_is_taken_away():
    out, err = on_a_terminal("0")
    assert out == "the answer\nTrue\n"
    assert "answering questions" in err
    assert "3 of 16" in err
    assert "\x1b[?25h" in err  # the cursor is back
    assert err.rstrip().endswith("\x1b[2K")  # the last thing done is to clear the line


def test_what_fails_takes_the_line_away_too():
    _, err = on_a_terminal("0", "fails")
    before, _, after = err.rpartition("\x1b[2K")
    assert "answering questions" in before
    assert after.strip() == "it failed"


def test_a_short_work_shows_nothing_and_imports_nothing():
    assert on_a_terminal("60") == ("the answer\nFalse\n", "")


def test_a_terminal_that_cannot_take_a_line_back_gets_none():
    assert on_a_terminal("0", env={"TERM": "dumb"}) == ("the answer\nFalse\n", "")


def test_without_colour_the_line_has_none():
    _, err = on_a_terminal("0", env={"NO_COLOR": "1"})
    assert "3 of 16" in err
    assert "\x1b[3" not in err  # no foreground colour


def test_nothing_is_shown_where_stderr_is_piped(tmp_path):
    run = two_hosts(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "moeprof", "analyze", str(run), "--only", "step_time"],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    assert done.stderr == ""
    assert done.stdout


def test_work_of_one_piece_is_not_counted():
    work = progress.Work("reading the run")
    work.counting("reading the run")(0, 1)
    assert work._now == ("reading the run", 0, None)
    work.counting("reading the run")(1, 4)
    assert work._now == ("reading the run", 1, 4)


@pytest.mark.parametrize("threads", [1, 4])
def test_every_file_that_is_read_is_told(monkeypatch, threads):
    monkeypatch.setattr("moeprof.ingest.assemble.thread_count", lambda: threads)
    heard: list[tuple[int, int]] = []
    found = side_by_side(str, range(5), lambda done, of: heard.append((done, of)))
    assert found == ["0", "1", "2", "3", "4"]
    assert sorted(heard) == [(done, 5) for done in range(6)]
