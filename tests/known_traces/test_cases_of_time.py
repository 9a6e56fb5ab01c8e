"""Loops that idle, update or evaluate between steps, and work beside all steps: known answers."""

from __future__ import annotations

import functools

import pytest

from moeprof.analyzers.comparison.compare import compare
from moeprof.analyzers.comparison.gates import FAILED, PASSED, outcome, parse_gate
from moeprof.analyzers.laws import LAWS
from moeprof.analyzers.questions.hints import hints
from moeprof.analyzers.questions.step_time import step_time
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run

MS = 1_000_000


@pytest.fixture(scope="module")
def case(data):
    return functools.cache(lambda name: open_run(data / "cases" / f"{name}.xplane.pb.gz"))


def figures(trace):
    return {metric.metric: metric.value for metric in step_time(trace).headline}


@pytest.mark.parametrize(
    ("name", "mean_ms", "idle_ms"),
    [("between_steps/short_pause", 10, 1), ("between_steps/long_pause", 13, 4)],
)
def test_a_pause_is_in_the_interval(case, name, mean_ms, idle_ms):
    found = figures(case(name))
    assert found["interval_mean"] == mean_ms * MS
    assert found["between_idle"] == idle_ms * MS
    assert found["between_idle_share"] == pytest.approx(idle_ms / mean_ms)
    assert found["interval_compute"] + found["interval_exposed_communication"] == 9 * MS


def test_the_pause_is_all_of_the_change_and_fails_the_gate(case):
    found = compare(case("between_steps/short_pause"), case("between_steps/long_pause"))
    change = found.step.set_index("part")["change_ns"]
    assert change[change != 0].to_dict() == {"step": 3 * MS, "between_idle": 3 * MS}
    assert outcome(parse_gate("step>+2%"), found).verdict == FAILED
    assert outcome(parse_gate("step>+31%"), found).verdict == PASSED
    table = hints(case("between_steps/long_pause")).table.set_index("hint")
    assert table["gain_ns"].idxmax() == "idle_between_steps"


def test_an_update_every_third_step_is_named(case):
    trace = case("between_steps/update_every_third")
    found = figures(trace)
    assert (found["outside_time"], found["outside_programs"]) == (20 * MS, "jit_apply")
    assert found["outside_share"] == pytest.approx(20 / 95)
    intervals = step_time(trace).table["interval_ns"].tolist()
    assert intervals[:6] == [5.2 * MS, 5.2 * MS, 9.6 * MS] * 2
    assert any("the mean interval is 6.667 ms" in note for note in step_time(trace).notes)


@pytest.mark.parametrize(
    ("name", "pieces", "outside_ms", "all_ms", "program"),
    [
        ("before", 180, 7.2, 55.2, "jit_train_step"),
        ("after", 120, 6, 54, "jit_evaluate"),
        ("evaluation", 100, 40, 88, "jit_evaluate"),
    ],
)
def test_work_beside_all_steps_is_told(case, name, pieces, outside_ms, all_ms, program):
    trace = case(f"spill/{name}")
    found = figures(trace)
    assert found["outside_time"] == pytest.approx(outside_ms * MS)
    assert found["outside_share"] == pytest.approx(outside_ms / all_ms)
    assert (found["outside_pieces"], found["outside_programs"]) == (pieces, program)
    assert found["step_time_median"] == 13.18 * MS
    step_every_ms = [15, 60, 15] if name == "evaluation" else [15, 15, 15]
    assert step_time(trace).table["interval_ns"].tolist()[:3] == [ms * MS for ms in step_every_ms]
    assert {law(trace).verdict for law in LAWS} <= {"ok", "unchecked"}


def test_an_evaluation_fails_no_gate(case):
    found = compare(case("spill/after"), case("spill/evaluation"))
    assert outcome(parse_gate("step>+2%"), found).verdict == PASSED
    assert any("after step 101 (60.00 ms, jit_evaluate)" in note for note in found.notes)


@pytest.mark.parametrize("name", ["h100x2_moe_ragged.xplane.pb", "mi300x_jax_conv3d.xplane.pb"])
def test_recorded_intervals_add_up(opened, name):
    table = timeline(opened(name)).table
    known = table[table["interval_ns"].notna()]
    parts = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]
    parts += ["between_idle_ns", "between_other_ns"]
    assert len(known) >= 4
    assert (known[parts].sum(axis=1) == known["interval_ns"]).all()
