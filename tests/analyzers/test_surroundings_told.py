"""What profiling cost and how the GPUs were stands beside the time of a step."""

from __future__ import annotations

from dataclasses import replace

from builders.work import hlo, kernel, traced

from moeprof.analyzers import analyze
from moeprof.tables.law import Law

COST = "recorded steps took 12.30 ms, those beside them 11.90 ms: profiling costs 3.4 %"


def notes(trace):
    return analyze(trace, ["step_time"])["step_time"].notes


def test_good_answers_of_the_laws_on_the_window_are_notes_and_warnings_stay_in_the_record():
    trace = traced((kernel("dot", 0, 40),), (hlo("dot", "dot"),), {0: (0, 40)})
    good = replace(trace, trust=(Law("profiling_cost", "ok", COST), Law("steps", "ok", "3")))
    assert COST in notes(good)
    assert "3" not in notes(good)
    for verdict in ("warn", "unchecked"):
        other = replace(trace, trust=(Law("profiling_cost", verdict, COST),))
        assert COST not in notes(other)
