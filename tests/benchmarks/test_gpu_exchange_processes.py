"""Payload and times of an exchange between processes, against values worked out by hand."""

from __future__ import annotations

import argparse

import numpy as np
import pytest


def test_a_token_crosses_once_however_many_experts_it_has(program):
    processes = program("gpu.exchange_processes")
    load = processes.Load(tokens=2, hidden=4, slots=2, experts=4)
    # Rank 0 owns experts 0 and 1. Rank 1's first token goes there twice, its second not at all.
    idx = np.array([[[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    assert processes.crossing_bytes(load, idx, 0) == 1 * 4 * 2
    assert processes.crossing_bytes(load, idx, 1) == 1 * 4 * 2


def test_the_slower_process_counts(program, monkeypatch):
    processes = program("gpu.exchange_processes")
    monkeypatch.setattr(processes, "crossing_bytes", lambda *_: 58_505_216)
    first = {"mode": "PER_PROCESS", "tokens": 4096, "dispatch": 180.0, "both": 360.0}
    row = processes.row(processes.Load(4096), 2, [first, {**first, "dispatch": 200.0}])
    # 58.505216 MB in 200 and in 160 microseconds.
    assert (row["dispatch_us"], row["combine_us"]) == (200.0, 160.0)
    assert row["dispatch_GB_s"] == pytest.approx(292.5)
    assert row["combine_GB_s"] == pytest.approx(365.7)


@pytest.mark.parametrize(
    ("program_text", "failed"),
    [
        ("import sys; sys.exit(3)", "processes ended with statuses [3, 3]"),
        ("import time; time.sleep(60)", "no result within 2 s"),
    ],
)
def test_processes_that_fail_are_named(program, monkeypatch, tmp_path, program_text, failed):
    processes = program("gpu.exchange_processes")
    script = tmp_path / "stand_in.py"
    script.write_text(program_text)
    monkeypatch.setattr(processes, "__file__", str(script))
    options = argparse.Namespace(limit_s=2.0, smoke=False)
    assert processes.measure(2, processes.LOADS, options) == ([], failed)
