"""Programs without scopes, annotations or a word of moeprof: the trace must still tell."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moeprof.analyzers import analyze
from moeprof.tables.trace import Trace

PROGRAMS = ["einsum_dispatch", "sorted_classes", "terse"]
Captured = Callable[[str], Trace]


@pytest.fixture(params=PROGRAMS)
def trace(request: pytest.FixtureRequest, captured: Captured) -> Trace:
    return captured(request.param)


def operations(trace: Trace):
    """All operations that ran, with shape and source line number."""
    from moeprof.analyzers.attribution import attribute

    table = attribute(trace, trace.events).pandas().merge(trace.hlo_ops, on=["module", "op"])
    return table.assign(line=table["source"].str.rpartition(":")[2])


def line_of(program: str, text: str) -> str:
    """Number of the only line of a program that holds `text`."""
    source = (Path(__file__).parent / "programs" / f"{program}.py").read_text().splitlines()
    (number,) = (n for n, content in enumerate(source, start=1) if text in content)
    return str(number)


def test_every_device_event_resolves_to_an_instruction(trace):
    known = set(zip(trace.hlo_ops["module"], trace.hlo_ops["op"], strict=True))
    events = set(zip(trace.events["module"], trace.events["op"], strict=True))
    assert events
    assert events <= known


def test_every_step_is_found_and_used(trace):
    assert trace.steps["reason"].tolist() == ["", "", ""]
    assert trace.steps["used"].tolist() == [True, True, True]
    assert {law.verdict for law in trace.trust} <= {"ok", "unchecked"}  # no GPU, no launches


def test_self_times_are_never_negative_and_never_longer_than_the_event(trace):
    assert (trace.events["self_ns"] >= 0).all()
    # both are rounded down from picoseconds, the length as a difference of two
    assert (trace.events["self_ns"] <= trace.events["duration_ns"] + 1).all()


def test_less_than_a_tenth_stays_without_a_part(trace):
    headline = {m.metric: m.value for m in analyze(trace, ["breakdown"])["breakdown"].headline}
    assert headline["unattributed_share"] < 0.02
    # A busy machine may hold up a tiny op for longer than all others run: its shortest run counts.
    work = operations(trace)
    costs = work.groupby(["component", "module", "op"], observed=True)["self_ns"]
    costs = costs.agg(["min", "size"])
    by_part = (costs["min"] * costs["size"]).groupby("component").sum()
    unexplained = by_part.reindex(["unattributed", "other"], fill_value=0).sum()
    assert unexplained < 0.02 * by_part.sum()


def test_all_parts_of_the_model_are_found(trace):
    table = analyze(trace, ["breakdown"])["breakdown"].table
    assert {
        "router",
        "permute",
        "grouped_gemm",
        "expert_elementwise",
        "attention",
        "norm",
        "embedding",
        "head",
        "loss",
        "optimizer",
    } <= set(table["component"])
    assert {"forward", "backward"} <= set(table["phase"][table["component"] == "grouped_gemm"])


def test_the_products_of_experts_are_those_of_their_lines(captured):
    ops = operations(captured("einsum_dispatch"))
    dots = ops[ops["op"].str.startswith(("dot", "ynn"))]
    expert_lines = {
        line_of("einsum_dispatch", 'p["w_in"]'),
        line_of("einsum_dispatch", 'p["w_out"]'),
    }
    assert set(dots["component"][dots["line"].isin(expert_lines)]) <= {
        "grouped_gemm",
        "expert_elementwise",
    }
    assert expert_lines <= set(dots["line"][dots["component"] == "grouped_gemm"])
    assert set(dots["line"][dots["component"] == "grouped_gemm"]) <= expert_lines


def test_recompute_is_told_from_backward(captured):
    table = analyze(captured("einsum_dispatch"), ["breakdown"])["breakdown"].table
    phases = set(table["phase"][table["component"] == "attention"])
    assert {"forward", "recompute", "backward"} <= phases


def test_the_sum_of_partial_outputs_over_experts_is_the_way_back(captured):
    ops = operations(captured("einsum_dispatch"))
    back = ops[(ops["line"] == line_of("einsum_dispatch", "bsec,ebcd->bsd")) & ops["is_collective"]]
    assert set(back["component"]) == {"combine"}


def test_scatter_into_slots_is_permutation_and_scatter_add_is_its_way_back(captured):
    ops = operations(captured("sorted_classes"))
    slots = ops[ops["line"] == line_of("sorted_classes", "slots.at[expert, place]")]
    added = ops[ops["line"] == line_of("sorted_classes", ".add(back)")]
    named = ops["evidence"] != "neighbour"
    assert set(slots["component"][named]) == {"permute"}
    assert set(added["component"][named]) == {"unpermute"}


def test_an_update_in_a_program_of_its_own_is_the_optimizer_and_in_the_step(captured):
    trace = captured("terse")
    ops = operations(trace)
    # a small program that hands the batch to the devices may run in every step too
    names = trace.modules.set_index("module")["name"]
    assert {"jit_g", "jit_u"} <= set(names[trace.events["module"][trace.events["step"] >= 0]])
    assert set(ops["component"][ops["line"] == line_of("terse", "a - 0.01 * b")]) == {"optimizer"}


def test_sums_of_gradients_outside_of_the_derivative_are_such(captured):
    ops = operations(captured("terse"))
    assert set(ops["component"][ops["is_collective"]]) == {"gradient_reduce"}


def test_terse_attention_is_told_by_its_softmax(captured):
    ops = operations(captured("terse"))
    mixing = ops[ops["line"] == line_of("terse", "q @ k.transpose")]
    assert set(mixing["component"][mixing["evidence"] != "neighbour"]) == {"attention"}


def test_waits_of_collectives_are_found_on_every_device(captured):
    waits = captured("terse").rendezvous
    assert set(waits["device"]) == set(range(8))
    assert set(waits["op"].str.startswith("all-reduce")) == {True}
