"""From the start of a step to the start of the next: parts, other programs, gates, hints, laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.activity import account
from moeprof.analyzers.activity.outside import other_programs
from moeprof.analyzers.comparison.compare import compare
from moeprof.analyzers.comparison.gates import FAILED, NOT_KNOWN, PASSED, outcome, parse_gate
from moeprof.analyzers.laws import time as laws
from moeprof.analyzers.patterns import idle_between_steps
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.hints import hints
from moeprof.analyzers.questions.step_time import step_time
from moeprof.analyzers.questions.timeline import timeline
from moeprof.tables.law import Law, Need, Scope
from moeprof.tables.trace import Trace

OPS = (hlo("dot", "dot"), hlo("sum", "all-reduce"))
US = 1000
IN_STEP = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]
COLUMNS = [*IN_STEP, "between_idle_ns", "between_other_ns"]


def loop(every_us=100, steps=4, devices=1, others=(), **more):
    """Steps of 40 us dot, 10 us idle, 20 us sum; one every `every_us`.

    `others` are (start, length in us, program) of work between steps.
    """
    work = []
    for step in range(steps):
        at = step * every_us * US
        for device in range(devices):
            work.append(kernel("dot", at, 40 * US, step=step, device=device))
            work.append(kernel("sum", at + 50 * US, 20 * US, step=step, device=device))
    for start, length, module in others:
        work += [
            kernel("", start * US, length * US, name="k", step=-1, module=module, device=device)
            for device in range(devices)
        ]
    spans = {step: (step * every_us * US, 70 * US) for step in range(steps)}
    return traced(work, OPS, spans, **more)


def without(trace, step):
    """`trace` with a step that is not used."""
    is_left_out = trace.steps["step"] == step
    steps = trace.steps.assign(used=~is_left_out, reason=is_left_out.map({True: "x", False: ""}))
    return Trace(**{**vars(trace), "steps": steps})


def headline(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


def test_parts_of_each_interval_add_up_to_it():
    """100 = 40 + 20 + 0 + 10 in the step and 30 after it, 12 of them of program 9 after step 1."""
    table = timeline(loop(devices=2, others=[(175, 12, 9)])).table
    rows = table[table["rank"] == 1].set_index("step")
    assert rows.loc[0, COLUMNS].tolist() == [40_000, 20_000, 0, 10_000, 30_000, 0]
    assert rows.loc[1, COLUMNS].tolist() == [40_000, 20_000, 0, 10_000, 18_000, 12_000]
    known = table[table["interval_ns"].notna()]
    assert len(known) == 2 * 3
    assert (known[COLUMNS].sum(axis=1) == known["interval_ns"]).all()
    last = rows.loc[3, ["interval_ns", "between_idle_ns", "between_other_ns"]]
    assert last.isna().all()


def test_the_headline_is_the_mean_interval_and_its_parts():
    found = headline(step_time(loop(steps=5, others=[(175, 12, 9)])))
    assert (found["interval_mean"], found["intervals"]) == (100_000, 4)
    assert (found["interval_min"], found["interval_max"]) == (100_000, 100_000)
    parts = ("interval_compute", "interval_exposed_communication", "interval_exposed_copy")
    parts += ("interval_idle", "between_idle", "between_other")
    assert [found[part] for part in parts] == [40_000, 20_000, 0, 10_000, 27_000, 3_000]
    assert found["between_other_share"] == pytest.approx(0.03)
    assert found["step_time_median"] == 70_000


def test_a_step_that_the_next_one_overlaps_ends_at_its_start():
    """Steps of 70 us every 60: the sum's last 10 us lie in the next interval, under its dot."""
    analysis = timeline(loop(every_us=60))
    rows = analysis.table.set_index("step")
    assert rows.loc[0, COLUMNS].tolist() == [40_000, 10_000, 0, 10_000, 0, 0]
    assert rows.loc[0, "interval_ns"] == 60_000
    assert rows.loc[0, "duration_ns"] == 70_000
    assert rows.loc[3, IN_STEP].tolist() == [40_000, 20_000, 0, 10_000]
    assert any("steps overlap" in note for note in analysis.notes)
    assert laws.intervals(loop(every_us=60)).verdict == "ok"


def test_a_step_that_is_left_out_is_part_of_no_interval():
    trace = without(loop(steps=6), 2)
    table = step_time(trace).table
    assert table["interval_ns"].fillna(-1).tolist() == [100_000, -1, -1, 100_000, 100_000, -1]
    found = headline(step_time(trace))
    assert (found["interval_mean"], found["intervals"]) == (100_000, 3)
    assert any("1 interval is not known" in note for note in step_time(trace).notes)


def test_a_number_that_is_missing_is_a_step_that_is_not_there():
    trace = loop(steps=4)
    steps = trace.steps.assign(step=[10, 11, 13, 14])
    events = trace.events.assign(step=trace.events["step"].map({0: 10, 1: 11, 2: 13, 3: 14}))
    meta = replace(trace.meta, are_steps_numbered_by_script=True)
    made = Trace(**{**vars(trace), "steps": steps, "events": events, "meta": meta})
    table = step_time(made).table
    assert table["interval_ns"].fillna(-1).tolist() == [100_000, -1, 100_000, -1]
    by_place = Trace(**{**vars(made), "meta": trace.meta})
    assert step_time(by_place).table["interval_ns"].notna().sum() == 3


def test_one_step_has_no_interval():
    found = headline(step_time(loop(steps=1)))
    assert (found["interval_mean"], found["intervals"], found["between_idle"]) == (None, 0, None)
    assert laws.intervals(loop(steps=1)).verdict == "unchecked"


def test_hosts_keep_their_own_clocks():
    far = 10**12
    work = [
        kernel("dot", far * (host == "b") + 100 * step, 40, step=step, host=host)
        for host in "ab"
        for step in (0, 1, 2)
    ]
    table = timeline(traced(work, OPS, {step: (100 * step, 40) for step in (0, 1, 2)})).table
    assert table["interval_ns"].fillna(-1).tolist() == [100, 100, -1] * 2
    assert table["between_idle_ns"].fillna(-1).tolist() == [60, 60, -1] * 2


def test_a_part_of_a_piece_per_device_is_not_no_piece():
    """One piece of program 9 on four devices; the program of the other has an id of no program."""
    trace = loop(devices=4, others=[(75, 12, 9), (275, 12, -3)])
    events = trace.events
    is_extra = events["module"].isin([9, -3]) & events["device"].gt(0)
    trace = replace(trace, events=events[~is_extra].reset_index(drop=True))
    (note,) = (note for note in step_time(trace).notes if note.startswith("outside of every"))
    assert "program 9 3.000 µs in 1 piece on 4 devices between steps" in note
    assert "work of no known program 3.000 µs in 1 piece on 4 devices between steps" in note
    assert "in 0.5 pieces per device" in laws.outside_steps(trace).detail


def test_work_outside_of_every_step_is_named_with_its_place():
    """Of 4 × 60 us in steps and 60 outside, 300 us, program 9 has 40 and program 8 has 20."""
    trace = loop(others=[(-60, 20, 8), (75, 12, 9), (375, 28, 9)])
    found = headline(step_time(trace))
    assert found["outside_time"] == 60_000
    assert found["outside_share"] == pytest.approx(60 / 300)
    assert (found["outside_pieces"], found["outside_programs"]) == (3, "program 9, program 8")
    (note,) = (note for note in step_time(trace).notes if note.startswith("outside of every"))
    assert "program 9 28.00 µs in 1 piece after the last step" in note
    assert "program 8 20.00 µs in 1 piece before the first step" in note
    assert "program 9 12.00 µs in 1 piece between steps" in note
    law = laws.outside_steps(trace)
    assert (law.verdict, law.expected, law.found) == ("ok", 300_000, 300_000)
    assert "20.0 % outside of every step" in law.detail


def test_a_program_once_in_several_steps_tells_the_mean_of_whole_rounds():
    """After steps 1, 3, 5 and 7, with an interval every 100 us: 3 whole rounds of 2 steps."""
    trace = loop(steps=9, others=[(100 * step + 75, 20, 9) for step in (1, 3, 5, 7)])
    notes = step_time(trace).notes
    expected = "program 9 runs once in 2 steps: over 3 whole rounds the mean interval is 100.0 µs"
    assert expected in notes


def test_components_are_shares_of_the_interval_too():
    table = breakdown(loop()).table
    assert table["interval_share"].sum() == pytest.approx(0.6)
    assert breakdown(loop(steps=1)).table["interval_share"].isna().all()
    law = laws.components(loop())
    assert (law.verdict, law.expected, law.found) == ("ok", 240_000, 240_000)


def test_a_pause_between_steps_is_all_of_the_change():
    """100 → 130 us: the step is the same, the idle time after it grows by 30 us."""
    found = compare(loop(steps=5), loop(130, steps=5))
    step = found.step.set_index("part")
    assert step.loc["step", ["base_ns", "new_ns", "change_share"]].tolist() == [1e5, 1.3e5, 0.3]
    assert step["change_ns"].drop(["step", "between_idle"]).eq(0).all()
    assert step.loc["between_idle", "change_ns"] == 30_000
    assert outcome(parse_gate("step>+2%"), found).verdict == FAILED
    assert outcome(parse_gate("between_idle>+20us"), found).verdict == FAILED
    assert outcome(parse_gate("idle>+1us"), found).verdict == PASSED


def test_an_interval_with_an_evaluation_is_left_out_of_gates_by_name():
    """An evaluation makes step 1's interval 500 of 100 us."""
    trace = loop(steps=5, others=[(180, 300, 9)])
    starts = {0: 0, 1: 100, 2: 600, 3: 700, 4: 800}
    shift = {step: (start - 100 * step) * US for step, start in starts.items()} | {-1: 0}
    events = trace.events.assign(
        start_ns=trace.events["start_ns"] + trace.events["step"].map(shift)
    )
    steps = trace.steps.assign(start_ns=trace.steps["start_ns"] + trace.steps["step"].map(shift))
    made = Trace(**{**vars(trace), "events": events, "steps": steps})
    assert headline(step_time(made))["interval_mean"] == 200_000  # all of them count in the run
    assert other_programs(made).pandas()[["step", "is_program"]].to_numpy().tolist() == [[1, True]]
    found = compare(loop(steps=5), made)
    assert found.step.set_index("part").loc["step", "new_ns"] == 100_000
    assert outcome(parse_gate("step>+2%"), found).verdict == PASSED
    (note,) = (note for note in found.notes if "left out" in note)
    assert note.startswith("new: the interval with another program")
    assert "after step 1 (500.0 µs, program 9)" in note


def test_a_program_of_every_interval_is_left_in():
    others = [(100 * step + 75, 10, 9) for step in range(4)]
    trace = loop(steps=5, others=others)
    found = compare(trace, trace)
    assert found.step.set_index("part").loc["between_other", "base_ns"] == 10_000
    assert not any("left out" in note for note in found.notes)


def updates(every, steps, first=0, length=20):
    """Steps of 100 us, with program 9 behind every `every`-th from `first` on."""
    return loop(steps=steps, others=[(100 * n + 75, length, 9) for n in range(first, steps, every)])


@pytest.mark.parametrize(
    ("sizes", "firsts", "counts"),
    [
        ((9, 8), (1, 1), (8, 6)),  # 8 and 7 intervals of rounds of 2
        ((8, 9), (0, 1), (6, 8)),
        ((9, 5), (1, 0), (8, 4)),
        ((10, 4), (1, 1), (8, 2)),  # program 9 comes once in 3 intervals, as in the other run
    ],
)
def test_a_program_of_every_other_step_is_compared_over_whole_rounds(sizes, firsts, counts):
    sides = [updates(2, size, first) for size, first in zip(sizes, firsts, strict=True)]
    found = compare(*sides)
    step = found.step.set_index("part")
    assert step.loc["between_other", ["base_ns", "new_ns"]].tolist() == [10_000, 10_000]
    assert step["change_ns"].eq(0).all()
    assert any(f"mean of {counts[0]} of base and {counts[1]} of new" in n for n in found.notes)
    told = f"base: whole rounds are compared (program 9 once in 2 steps): {counts[0]} of "
    assert any(note.startswith(told) for note in found.notes)
    assert outcome(parse_gate("between_other>+1%"), found).verdict == PASSED


def test_an_update_that_takes_longer_fails_its_gate():
    """20 → 24 us once in three of 10 and 8 intervals: 4 / 3 us of the mean interval."""
    found = compare(updates(3, 11), updates(3, 9, first=2, length=24))
    step = found.step.set_index("part")
    assert step.loc["between_other", "base_ns"] == pytest.approx(20_000 / 3)
    assert step.loc["between_other", "change_ns"] == pytest.approx(4_000 / 3)
    assert step.loc["between_other", "verdict"] == "beyond noise"  # a round is like the other
    assert outcome(parse_gate("between_other>+10%"), found).verdict == FAILED


def test_a_run_too_short_for_a_round_leaves_the_program_out_of_both():
    found = compare(updates(4, 13), updates(4, 4, first=1))
    step = found.step.set_index("part")
    assert step.loc["between_other", ["base_ns", "new_ns"]].tolist() == [0, 0]
    assert any("mean of 9 of base and 2 of new" in note for note in found.notes)
    left_out = [note for note in found.notes if "left out" in note]
    assert [note.split(":")[0] for note in left_out] == ["base", "new"]


def test_an_evaluation_takes_the_whole_round_that_it_is_in():
    """Update after steps 1, 3, 5, 7 of 8 intervals; the evaluation is in the third round."""
    others = [(100 * n + 75, 20, 9) for n in (1, 3, 5, 7)] + [(475, 22, 8)]
    found = compare(loop(steps=9, others=others), updates(2, 9, first=1))
    step = found.step.set_index("part")
    assert step.loc["between_other", ["base_ns", "new_ns"]].tolist() == [10_000, 10_000]
    assert any("mean of 6 of base and 8 of new" in note for note in found.notes)
    assert any("after step 4 (100.0 µs, program 8)" in note for note in found.notes)


def test_programs_at_no_equal_distance_are_left_out_of_both_runs_alike():
    """Behind 3 of 5 steps in one run, 1 of 5 in the other: 4 of 10, so it is not of the loop."""
    sides = [
        loop(steps=6, others=[(100 * n + 75, 20, 9) for n in places])
        for places in ((0, 1, 3), (2,))
    ]
    for base, new in (sides, sides[::-1]):
        step = compare(base, new).step.set_index("part")
        assert step.loc["between_other", ["base_ns", "new_ns"]].tolist() == [0, 0]


def test_a_copy_is_no_program_however_long_it_is():
    """The batch of step 2 is 25 us where others are 5 us: a stall that a gate has to see."""
    copies = [(100 * n + 72, 25 if n == 2 else 5, -1) for n in range(5)]
    found = compare(
        loop(steps=6, others=[(s, 5, m) for s, _, m in copies]), loop(steps=6, others=copies)
    )
    assert not any("left out" in note for note in found.notes)
    step = found.step.set_index("part")
    assert step.loc["between_other", ["base_ns", "new_ns"]].tolist() == [5_000, 9_000]
    assert outcome(parse_gate("between_other>+5%"), found).verdict == FAILED


def test_without_an_interval_the_length_of_the_step_is_compared():
    found = compare(loop(steps=1), loop(steps=5))
    step = found.step.set_index("part")
    assert step.loc["step", ["base_ns", "new_ns"]].tolist() == [70_000, 70_000]
    assert any("no interval from step to step is known in base" in note for note in found.notes)
    assert outcome(parse_gate("between_idle>+1us"), found).verdict == NOT_KNOWN


def test_a_loop_that_idles_between_steps_is_the_first_finding():
    """70 of 10,000 us are a step: 9,930 us are to be gained, 99.3 %, loading batches."""
    load = {"host": "a", "line": "t", "kind": "input", "name": "next_batch", "step": -1}
    loads = [
        {**load, "start_ns": (10_000 * n + 80) * US, "duration_ns": 9_900 * US} for n in range(3)
    ]
    trace = loop(10_000, host_events=loads)
    table = hints(trace).table
    assert table["hint"].iloc[0] == "idle_between_steps"
    assert table["gain_ns"].iloc[0] == 9_930 * US
    assert table["gain_share"].iloc[0] == pytest.approx(0.993)
    assert "input pipeline" in table["evidence"].iloc[0]
    assert headline(step_time(trace))["between_idle_cause"] == "input pipeline"


def test_what_the_program_says_it_does_is_the_cause_where_nothing_else_is_known():
    said = {"host": "a", "line": "t", "kind": "annotation", "name": "orbax_save", "step": -1}
    trace = loop(1_000, host_events=[{**said, "start_ns": 75 * US, "duration_ns": 900 * US}])
    notes = step_time(trace).notes
    assert any("checkpoint 310.0 µs" in note for note in notes)  # 930 in one of 3 intervals


def test_back_to_back_steps_give_no_hint():
    assert idle_between_steps.find(loop(72)) is None
    assert idle_between_steps.find(loop(steps=1)) is None


def test_a_step_that_is_used_and_not_used_at_once_breaks_the_law():
    trace = loop()
    twice = trace.steps.iloc[[0, 1, 2, 3, 3]].assign(used=[True, True, True, True, False])
    law = laws.outside_steps(Trace(**{**vars(trace), "steps": twice}))
    assert (law.verdict, law.expected, law.found) == ("fail", 240_000, 300_000)
    assert law.breaks == (Need.WHOLE_STEPS,)


def test_work_of_a_step_that_is_not_there_breaks_the_law():
    """Of 4 × 60 us the 60 of step 3 name step 9, which no table has: they are in no figure."""
    trace = loop()
    events = trace.events.assign(step=trace.events["step"].replace({3: 9}))
    law = laws.outside_steps(Trace(**{**vars(trace), "events": events}))
    assert (law.verdict, law.expected, law.found) == ("fail", 240_000, 180_000)


@pytest.mark.parametrize("is_between", [False, True])
def test_work_that_the_account_misses_breaks_the_law_of_intervals(monkeypatch, is_between):
    """3 intervals of 100 us lack the 12 us behind step 1, or 20 us of each step's 60."""
    trace = loop(others=[(175, 12, 9)])
    if is_between:
        monkeypatch.setattr(account, "covered_ns", lambda _, __, count: np.zeros(count, np.int64))
    else:
        right = account.shares_of_time
        monkeypatch.setattr(
            account, "shares_of_time", lambda *given: _without_exposed(right(*given))
        )
    law = laws.intervals(trace)
    assert law.verdict == "fail"
    assert law.expected - law.found == (12_000 if is_between else 3 * 20_000)
    assert law.breaks == (Need.INTERVALS,)


def _without_exposed(shares):
    idle = shares["idle_ns"] + shares["exposed_communication_ns"]
    return {**shares, "exposed_communication_ns": 0 * idle, "idle_ns": idle}


def test_a_figure_that_a_law_withholds_whole_is_not_compared():
    """A scope without rows counts as a whole question does; one of some rows leaves the others."""
    figures = Law("x", "warn", "why", scopes=(Scope("step_time", ("interval_mean",)),))
    base = loop(steps=5)
    found = compare(base, replace(base, trust=(figures,)))
    assert found.step.empty
    assert "step withheld: new: x: why" in found.notes
    rows = Law("x", "warn", "why", scopes=(Scope("timeline", device=3),))
    assert len(compare(base, replace(base, trust=(rows,))).step)
