"""What stands where: first in a pipe, last on a terminal, and once where one fault explains all."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.report_cases import breakdown, document, trace
from builders.xspace import event, host, line, metadata, thunk, xspace

from moeprof.analyzers.questions.hints import SCHEMA as HINTS
from moeprof.answers.document import Document
from moeprof.reports.run.document import build
from moeprof.reports.run.terminal import answers, summary
from moeprof.tables.analysis import Analysis

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))


@pytest.fixture
def run(tmp_path):
    file = tmp_path / "run.xplane.pb"
    work = [thunk("add", 10_000 * place + 10, 1000, run_id=place) for place in range(4)]
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("pool", *work))))
    return file


def on_a_terminal(*words: object, columns: int, lines: int) -> str:
    """What the command prints on a terminal of that size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    known = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    started = subprocess.Popen(
        [sys.executable, "-m", "moeprof", *map(str, words)],
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={**known, "TERM": "dumb"},
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
    os.close(master)
    assert started.wait(timeout=60) == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_ends_with_trust_step_and_next(run, ran, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # which runs on several processes set
    shown = on_a_terminal("analyze", run, columns=100, lines=24)
    last = shown.splitlines()[-23:]
    assert any(text.startswith("Trust  ") for text in last)
    assert any(text.startswith("Step   ") for text in last)
    assert last[-1].startswith(("Next   ", "     "))
    assert max(map(len, shown.splitlines())) <= 100
    _, piped, _ = ran("analyze", run)
    assert piped.startswith("Run    ")
    assert piped.count("\nTrust  ") == 1
    assert "Too wide for this terminal" in shown
    assert "Too wide" not in piped


def hinted() -> Document:
    """A run with four findings."""
    rows = [
        {"hint": f"late_rank_{place}", "gain_ns": 1e6, "gain_share": 0.1, "look": "stragglers",
         "gain_bytes": float("nan"), "source": "", "evidence": "others wait " * 40,
         "change": "do so " * 30}
        for place in range(4)
    ]  # fmt: skip
    found = Analysis("hints", "What?", (), HINTS, HINTS.frame(rows))
    return build(trace(), {"hints": found, "breakdown": breakdown({("attention", "forward"): 5})})


@pytest.mark.parametrize("tell", [answers, summary])
@pytest.mark.parametrize(("height", "has_change"), [(24, True), (16, False)])
def test_the_end_has_what_to_do_and_fits_the_screen(tell, height, has_change):
    whole, text = tell(hinted()).plain, tell(hinted(), height=height).plain
    before = whole[: whole.rindex("\n\nNext")]
    assert text.startswith(before)
    end = text.removeprefix(before).strip().splitlines()
    assert len(end) < height
    assert end[0].startswith("Trust  ")
    assert any(line.startswith("Step   ") for line in end)
    assert [line[:15] for line in end if line[1:2].isdigit()] == [
        f" {place}. Late rank {place - 1}"[:15] for place in (1, 2, 3)
    ]
    assert any("→ do so" in line for line in end) is has_change
    assert end[-1] == whole.splitlines()[-1]


def test_after_a_capture_few_notes_are_told_and_the_others_counted():
    """All stand in `moeprof analyze`, each with its question."""
    made = document()
    finding = made["analyses"]["breakdown"]
    finding["notes"] = [f"note {number}" for number in range(30)]
    others = [note for each in made["analyses"].values() for note in each["notes"]]
    shown, whole = summary(made).plain, answers(made).plain
    told = [line for line in shown.splitlines() if line.startswith(" - ")]
    assert len(told) == 8
    assert f"… and {len(dict.fromkeys(others)) - 8} more notes: moeprof analyze has each" in shown
    assert all(f" - {note}" in whole for note in finding["notes"])


def test_what_fits_the_screen_is_told_once():
    made = document()
    assert answers(made, height=10_000).plain == answers(made).plain
    assert answers(made).plain.count("\nTrust  ") == 1


def test_one_fault_that_withholds_everything_is_told_once(ran, tmp_path):
    file = tmp_path / "node0.xplane.pb"  # a host plane alone
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("python", event("train", 1, 9)))))
    code, out, _ = ran("analyze", file)
    assert code == 3
    assert out.count("Withheld: device_work failed") == 1
    assert "questions without an answer" in out
    told = " ".join(out.partition("Withheld: ")[2].partition("\n\n")[0].split())
    assert all(name in told for name in ("step_time", "breakdown", "grouped_gemm", "hints"))
    alone = ran("analyze", file, "--only", "breakdown")[1]
    assert "Withheld: device_work failed, so no figure of it can be trusted." in alone
