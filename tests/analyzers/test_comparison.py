"""What changed between two runs: hand-made traces, and laws that hold for all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from builders.work import Row, hlo, kernel, traced
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.analyzers.comparison.alignment import kernel_family, role_of, scope_of
from moeprof.analyzers.comparison.changes import COMPONENT, OP, PARTS, TOTAL
from moeprof.analyzers.comparison.compare import Comparison, compare
from moeprof.analyzers.comparison.gates import FAILED, NOT_KNOWN, PASSED, outcome, parse_gate
from moeprof.analyzers.comparison.noise import BEYOND, noise_ns, told
from moeprof.analyzers.comparison.noise import NOT_KNOWN as NOISE_NOT_KNOWN
from moeprof.analyzers.comparison.step_change import CLASSES
from moeprof.errors import SpecError
from moeprof.tables.law import Law
from moeprof.tables.trace import Trace

ATTENTION = "jit(step)/jvp()/attention/dot_general"
PERMUTE = "jit(step)/transpose(jvp())/moe/permute/{}"


def run(
    *,
    dot_ns: int = 100,
    dots: int = 2,
    moved_by: str = "scatter-add",
    devices: int = 1,
    gap: int = 0,
) -> Trace:
    """Three steps back to back, `dots` products of attention and one move of permute in each."""
    events: list[Row] = []
    steps: dict[int, tuple[int, int]] = {}
    for step in (0, 1, 2):
        at = step * (dots * dot_ns + gap + 50)
        for device in range(devices):
            for place in range(dots):
                begin = at + place * dot_ns
                events.append(kernel("dot.1", begin, dot_ns, step=step, device=device))
            begin = at + dots * dot_ns + gap
            name = f"{moved_by}_fusion"
            events.append(kernel("move.1", begin, 50, name, step=step, device=device))
        steps[step] = (at, dots * dot_ns + gap + 50)
    ops = [
        hlo("dot.1", "dot", op_name=ATTENTION, shape="f32[4,4]"),
        hlo("move.1", "fusion", op_name=PERMUTE.format(moved_by), shape="f32[8,4]"),
    ]
    return traced(events, ops, steps)


def row(comparison: Comparison, level: str, name: str = "") -> pd.Series:
    rows = comparison.rows
    (found,) = rows[(rows["level"] == level) & (rows["component"] == name)].to_dict("records")
    return pd.Series(found)


def parts(of: pd.Series) -> list[float]:
    return [0.0 if np.isnan(of[name]) else float(of[name]) for name in PARTS]


def test_the_same_calls_that_take_longer():
    """Two calls of 100 ns become two of 130: +60, all of it per call."""
    found = row(compare(run(), run(dot_ns=130)), COMPONENT, "attention")
    assert (found["base_ns"], found["new_ns"], found["change_share"]) == (200.0, 260.0, 0.3)
    assert parts(found) == [0.0, 60.0, 0.0, 0.0, 0.0]


def test_more_calls_cost_what_a_call_costs_in_the_run_that_makes_them():
    """2 × 100 become 3 × 130: 2 × 30 per call, and one more of 130."""
    found = row(compare(run(), run(dots=3, dot_ns=130)), COMPONENT, "attention")
    assert parts(found) == [0.0, 60.0, 130.0, 0.0, 0.0]
    assert (found["base_calls"], found["new_calls"]) == (2.0, 3.0)


def test_an_op_that_another_one_replaces():
    found = row(compare(run(), run(moved_by="gather")), COMPONENT, "permute")
    assert parts(found) == [0.0, 0.0, 0.0, -50.0, 50.0]
    assert found["replaced"] == "scatter-add → gather"


def test_another_number_of_devices_changes_no_figure_and_is_told():
    found = compare(run(), run(devices=4))
    assert row(found, TOTAL)["change_ns"] == 0.0
    assert any(
        "devices with work" in note and "1 in base, 4 in new" in note for note in found.notes
    )


def test_idle_time_is_the_change_of_a_step_whose_ops_are_the_same():
    found = compare(run(), run(gap=40))
    step = found.step.set_index("part")
    assert step.loc["step", ["base_ns", "new_ns", "change_ns"]].tolist() == [250.0, 290.0, 40.0]
    assert step.loc["idle", "change_ns"] == 40.0
    assert step.loc["idle", "verdict"] == BEYOND  # both steps are alike: no noise
    assert row(found, TOTAL)["change_ns"] == 0.0


def exchange(wait: int, transfer: int) -> Trace:
    """An all-gather of two devices in each of two steps, in which device 1 comes late."""
    events: list[Row] = []
    for step in (0, 1):
        at = step * 10_000
        events += [
            kernel("ag.1", at, wait + transfer, name="nccl_AllGather", step=step, device=0),
            kernel("ag.1", at + wait, transfer, name="nccl_AllGather", step=step, device=1),
        ]
    ops = [
        hlo("p.0", "parameter", size_bytes=64, shape="f32[16]"),
        hlo("ag.1", "all-gather", "p.0", 128, op_name="jit(step)/jvp()/x", shape="f32[32]")
        | {"replica_groups": "{{0,1}}"},
    ]
    return traced(events, ops)


def test_waiting_for_the_last_device_stands_apart_from_the_transfer():
    """Device 0 waits 400, then 100: mean of two devices −150. Transfers take 60, then 80: +20."""
    found = row(compare(exchange(400, 60), exchange(100, 80)), COMPONENT, "weight_gather")
    assert parts(found) == [-150.0, 20.0, 0.0, 0.0, 0.0]
    assert (found["base_exposed_ns"], found["new_exposed_ns"]) == (260.0, 130.0)


def test_waits_count_to_the_calls_where_a_check_withholds_them():
    check = Law("clocks", "fail", "two clocks", withholds=("collectives",))
    found = compare(replace(exchange(400, 60), trust=(check,)), exchange(100, 80))
    assert parts(row(found, COMPONENT, "weight_gather")) == [0.0, -130.0, 0.0, 0.0, 0.0]
    assert any("waits withheld: base: clocks: two clocks" in note for note in found.notes)


@pytest.mark.parametrize("is_base", [True, False])
def test_what_a_check_withholds_is_not_compared(is_base):
    check = Law("stamps", "fail", "no clock", withholds=("step_time", "breakdown"))
    broken = replace(run(), trust=(check,))
    found = compare(broken, run()) if is_base else compare(run(), broken)
    assert found.step.empty
    assert found.rows.empty
    assert len(found.memory)
    assert sum("withheld" in note for note in found.notes) == 2


def test_captures_without_a_step_are_not_compared():
    whole = run()
    found = compare(whole, replace(whole, steps=whole.steps.assign(used=False)))
    assert found.step.empty
    assert found.rows.empty
    assert any("no whole step to measure in new," in note for note in found.notes)


def test_traces_without_work_have_no_change():
    nothing = traced([])
    found = compare(nothing, nothing)
    assert found.step.empty
    assert found.rows.empty
    assert found.memory["change_bytes"].isna().all()


RUNS = st.builds(
    run,
    dot_ns=st.integers(1, 300),
    dots=st.integers(1, 5),
    moved_by=st.sampled_from(["scatter-add", "gather"]),
    devices=st.integers(1, 3),
    gap=st.integers(0, 200),
)
_FIGURES = ["change_ns", *PARTS]


@settings(max_examples=10)
@given(RUNS, RUNS)
def test_parts_add_up_exactly(base, new):
    found = compare(base, new)
    rows = found.rows
    for level in (COMPONENT, OP):
        assert rows[rows["level"] == level]["change_ns"].sum() == row(found, TOTAL)["change_ns"]
    assert (rows[list(PARTS)].fillna(0.0).sum(axis=1) == rows["change_ns"]).all()
    step = found.step.set_index("part")["change_ns"]
    assert step[list(CLASSES)].sum() == step["step"]


@settings(max_examples=10)
@given(RUNS, RUNS)
def test_exchanging_the_runs_changes_every_sign(base, new):
    there, back = compare(base, new), compare(new, base)
    swapped = back.rows.rename(
        columns={"only_base_ns": "only_new_ns", "only_new_ns": "only_base_ns"}
    )
    keys = ["level", "component", "phase", "op"]
    one, other = (t.sort_values(keys, ignore_index=True) for t in (there.rows, swapped))
    assert (one[keys] == other[keys]).all(axis=None)
    for name in _FIGURES:
        assert (one[name].fillna(0.0) == -other[name].fillna(0.0)).all()
    assert (there.step["change_ns"] == -back.step["change_ns"]).all()


@settings(max_examples=10)
@given(RUNS)
def test_a_run_beside_itself_has_no_change_at_all(trace):
    found = compare(trace, trace)
    assert (found.rows[_FIGURES].fillna(0.0) == 0.0).all(axis=None)
    assert (found.step["change_ns"] == 0.0).all()
    assert not found.rows["verdict"].eq(BEYOND).any()


def test_noise_is_welchs():
    """Steps 10, 14 and 20, 22: s² 8 and 2 over n = 2 give 4 + 1; (4+1)²/(16+1) = 1.47 degrees."""
    noise = noise_ns(np.array([[10.0, 14.0]]), np.array([[20.0, 22.0]]))
    assert noise == pytest.approx([12.706 * 5**0.5])
    assert told(np.array([9.0]), noise) == ["within noise"]


def test_one_step_has_no_noise():
    noise = noise_ns(np.array([[10.0]]), np.array([[20.0, 22.0]]))
    assert told(np.array([9.0]), noise) == [NOISE_NOT_KNOWN]


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("attention>+29%", FAILED),  # 200 → 260 ns is +30 %
        ("attention>+30%", PASSED),
        ("attention>+59ns", FAILED),
        ("attention > +0.06us", PASSED),
        ("permute>-3%", FAILED),  # did not get 3 % faster
        ("router>+0%", PASSED),  # in neither run
        ("step>+20%", FAILED),  # 250 → 310
        ("idle>+1ms", PASSED),
        ("memory>+1GiB", NOT_KNOWN),
    ],
)
def test_gates(expression, verdict):
    found = outcome(parse_gate(expression), compare(run(), run(dot_ns=130)))
    assert found.verdict == verdict


@pytest.mark.parametrize(
    "expression",
    ["step", "step>5%", "step<+5%", "step>+5", "step>+5GiB", "memory>+5ms", "grouped_gem>+5%", ""],
)
def test_a_gate_that_cannot_be_read_says_what_can(expression):
    with pytest.raises(SpecError, match=r"expected|there are"):
        parse_gate(expression)


@pytest.mark.parametrize("bare_side", ["base", "new"])
def test_a_profile_without_a_program_has_no_components_to_compare(bare_side):
    """A JSON trace knows ops by name, and nothing of them."""
    known = run()
    named_only = known.hlo_ops.assign(opcode="", op_name="", shape="[]")
    bare = replace(known, hlo_ops=named_only)
    sides = (bare, known) if bare_side == "base" else (known, bare)
    found = compare(*sides)
    assert set(found.rows["level"]) == {TOTAL}
    assert not found.is_whole
    told = f"components are not compared: {bare_side} has no compiled program"
    assert any(note.startswith(told) for note in found.notes)
    alike = compare(bare, bare)  # by name
    assert alike.is_whole
    assert set(alike.rows["shape"]) == {""}


def test_names_that_last():
    assert kernel_family("void nccl_v1::kernel<int, 4>(args)") == "void nccl_v_::kernel"
    assert kernel_family("loop_multiply_fusion_12") == "loop_multiply_fusion"
    assert kernel_family("loop_multiply_fusion_12.kd") == "loop_multiply_fusion"
    assert (
        scope_of("jit(step)/jvp(layers_3)/while/body/checkpoint/moe/dot_general") == "layers_#/moe"
    )
    assert role_of("scatter-add", "fusion") == role_of("gather", "fusion") == "move"
    assert role_of("__cublas$lt$matmul", "custom-call") == "product"
