"""Contestants in processes of their own: one that is late or dies is named, not waited for."""

from __future__ import annotations

import time

import pytest

STAND_IN = """
import json, sys, time
kind, shape = sys.argv[1], json.loads(sys.argv[2])
for line in sys.stdin:
    request = json.loads(line)
    if "sample" in request:
        print(json.dumps({"seconds": 0.25} if request["calls"] < 9 else {"wrong": "no room"}))
    elif kind == "late" and request["prepare"] == "dA":
        time.sleep(60)
    elif kind == "dies":
        sys.exit(3)
    else:
        print(json.dumps({"ready": [kind], "failed": {"other": "refused"}, "notes": {"tile": 7}}))
    sys.stdout.flush()
"""


@pytest.fixture
def start(program, monkeypatch, tmp_path):
    """Start a process that answers as `STAND_IN` does for its kind."""
    process = program("gpu.gemm_process")
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(process, "__file__", str(script))
    shape = program("gpu.gemm_shapes").SMOKE_SHAPES["smoke"]
    started = []

    def start(kind):
        started.append(process.ContestantProcess(kind, shape))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_samples_and_notes_cross_the_pipe(program, start):
    prepared = program("gpu.gemm_process").prepare_all([start("quick")], "forward", 20)
    assert prepared.samples["quick"](1) == 0.25
    assert prepared.failed == {"other": "refused"}
    assert prepared.notes == {"tile": 7}
    with pytest.raises(RuntimeError, match="no room"):
        prepared.samples["quick"](9)


def test_who_is_late_is_ended_and_the_others_go_on(program, start):
    prepare_all = program("gpu.gemm_process").prepare_all
    late, quick = start("late"), start("quick")
    assert set(prepare_all([late, quick], "forward", 20).samples) == {"late", "quick"}
    began = time.monotonic()
    prepared = prepare_all([late, quick], "dA", 2)
    assert time.monotonic() - began < 10
    assert prepared.failed["late"] == "was not ready within 2 s"
    assert prepared.samples["quick"](1) == 0.25
    assert prepare_all([late], "dB", 2).failed == {"late": "was not ready within 2 s"}


def test_a_process_that_ends_is_named_with_its_status(program, start):
    prepared = program("gpu.gemm_process").prepare_all([start("dies")], "forward", 20)
    assert prepared.failed == {"dies": "its process ended with status 3"}
