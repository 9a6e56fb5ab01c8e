import dataclasses

import numpy as np
import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers import analyze
from moeprof.analyzers.buffers import filled
from moeprof.analyzers.load.balance import drift, imbalance, imbalance_by_step, overload, tax
from moeprof.analyzers.patterns import unbalanced_experts
from moeprof.analyzers.questions.expert_load import NONE, expert_load, sentence
from moeprof.reports.run.document import build
from moeprof.tables.law import Law
from moeprof.tables.routing import RECEIVED, ROUTING

GEMM = hlo("up", "custom-call", custom_call_target="moeprof_grouped_gemm")


def routed(tokens, ranks, steps=(0,), work=None, ops=(GEMM,), first_layer=0):
    """`tokens` [layers][experts] in each of `steps`, or [steps][layers][experts]."""
    array = np.array(tokens)
    array = array if array.ndim == 3 else np.stack([array] * len(steps))
    rows = [
        {
            "step": step,
            "layer": layer + first_layer,
            "expert": expert,
            "rank": expert * ranks // array.shape[2],
            "tokens": int(array[at, layer, expert]),
        }
        for at, step in enumerate(steps)
        for layer, expert in np.ndindex(array.shape[1:])
    ]
    trace = traced([kernel("up", 0, 100)] if work is None else work, ops)
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    return dataclasses.replace(
        trace, meta=meta, routing=ROUTING.frame(rows), received=RECEIVED.frame()
    )


def values(analysis):
    return {m.metric: m.value for m in analysis.headline}


def overloaded():
    """4 layers × 8 ranks, 8000 tokens a layer: layer 2 gives rank 3 2500, others 1300."""
    loads = np.full((4, 8), 6700 / 7)
    loads[:, 3] = 1300
    loads[2] = 5500 / 7
    loads[2, 3] = 2500
    return loads


def test_overload_of_a_layer_and_of_all_layers_together():
    by_layer, whole = overload(overloaded())
    assert np.unravel_index(by_layer.argmax(), by_layer.shape) == (2, 3)
    assert by_layer.max() == pytest.approx(2.5)
    assert whole.argmax() == 3
    assert whole[3] == pytest.approx(1.6)  # 6400 of 4 × 1000


def test_the_overload_stands_in_the_headline():
    tokens = [[957, 957, 957, 1300, 957, 957, 957, 958]] * 4
    tokens[2] = [786, 786, 786, 2500, 786, 785, 785, 786]
    found = expert_load(routed(tokens, ranks=8))
    head = values(found)
    assert (head["worst_layer"], head["worst_rank"]) == (2, 3)
    assert head["worst_rank_imbalance"] == 2.5
    assert (head["cumulative_overload"], head["cumulative_rank"]) == (1.6, 3)


def of_nodes():
    """32 ranks on 4 hosts of 8: in each host rank 0 gets 14 tokens, the others 6; mean 7."""
    work = [
        kernel("up", 0, 100, host=host, device=device) for host in "abcd" for device in range(8)
    ]
    return routed([[14, 6, 6, 6, 6, 6, 6, 6] * 4], ranks=32, work=work)


def test_nodes_that_are_even_do_not_hide_ranks_that_are_not():
    found = expert_load(of_nodes())
    row = found.table.iloc[0]
    assert row["node_imbalance"] == 1.0
    assert row["rank_imbalance"] == 2.0
    assert row["level"] == "rank"
    assert (
        "nodes are even (1.00), ranks are not (2.00): the imbalance is inside the nodes"
        in found.notes
    )


def test_nodes_that_are_uneven_are_the_level():
    trace = of_nodes()
    tokens = [30] * 8 + [10] * 24
    routing = trace.routing.assign(tokens=np.array(tokens, dtype="int64"))
    row = expert_load(dataclasses.replace(trace, routing=routing)).table.iloc[0]
    assert (row["node_imbalance"], row["rank_imbalance"], row["level"]) == (2.0, 2.0, "node")


def test_busiest_and_dead_experts_of_each_layer():
    found = expert_load(routed([[10, 10, 10, 10], [0, 5, 30, 5]], ranks=2, first_layer=3))
    table = found.table
    assert table["layer"].tolist() == [3, 4]
    assert table["busiest_expert"].tolist() == [0, 2]
    assert table["expert_imbalance"].tolist() == [1.0, 3.0]
    assert table["busiest_rank"].tolist() == [0, 1]
    assert table["rank_imbalance"].tolist() == [1.0, 1.75]  # 35 of a mean of 20
    assert table["dead_experts"].tolist() == [0, 1]
    assert table["level"].tolist() == ["none", "rank"]
    head = values(found)
    assert head["dead_experts"] == 1
    assert (head["worst_expert_layer"], head["worst_expert"]) == (4, 2)


def test_the_busiest_expert_may_be_in_another_layer_than_the_busiest_rank():
    """Layer 0: expert 0 has 28 of a mean of 10, its rank 30 of 20; in layer 1 a rank has 40."""
    trace = routed([[28, 2, 5, 5], [20, 20, 0, 0]], ranks=2)
    found = expert_load(trace)
    head = values(found)
    assert (head["worst_expert_layer"], head["worst_expert"]) == (0, 0)
    assert head["worst_expert_imbalance"] == 2.8
    assert (head["worst_layer"], head["worst_rank_imbalance"]) == (1, 2.0)
    said = sentence(build(trace, analyze(trace, ["expert_load"])))
    assert said.startswith(
        "In layer 0 expert 0 gets 2.80 × the tokens of the mean one; ranks differ"
    )


def test_the_worst_step_of_a_layer_is_kept_beside_the_mean():
    steps = [[[20, 20]], [[30, 10]]]
    work = [kernel("up", 100 * step, 50, step=step) for step in (0, 1)]
    row = expert_load(routed(steps, ranks=2, steps=(0, 1), work=work)).table.iloc[0]
    assert row["rank_imbalance"] == 1.25  # 25 of a mean of 20
    assert (row["peak_overload"], row["peak_step"]) == (1.5, 1)
    assert row["drift"] == 0.25  # from 1/2, 1/2 to 3/4, 1/4


def moving(hot_ranks, row_ns=7):
    """3 ranks of 2 experts: in each step one of them gets 50 + 40 pairs, the others 15 each."""
    loads = [[[15] * 2 * r + [50, 40] + [15] * 2 * (2 - r)] for r in hot_ranks]
    steps = range(20, 20 + len(hot_ranks))
    work = [
        kernel("up", 1000 * step, row_ns * (90 if device == hot else 30), step=step, device=device)
        for step, hot in zip(steps, hot_ranks, strict=True)
        for device in range(3)
    ]
    return routed(loads, ranks=3, steps=tuple(steps), work=work)


@pytest.mark.parametrize("hot_ranks", [(0, 1, 2, 0, 1, 2), (1, 1, 1)])
def test_a_hot_spot_costs_as_much_where_it_moves(hot_ranks):
    """90 of a mean of 50 rows, 50 of a mean of 25; 40 rows of 7 ns are lost in every step."""
    found = expert_load(moving(hot_ranks))
    row, head = found.table.iloc[0], values(found)
    assert (row["rank_imbalance"], row["expert_imbalance"]) == (1.8, 2.0)
    assert head["worst_rank_imbalance"] == head["cumulative_overload"] == 1.8
    assert row["tax_ns"] == pytest.approx(280.0)
    assert (head["tax_least"], head["tax_most"]) == (pytest.approx(280.0), pytest.approx(280.0))
    assert row["level"] == "rank"


def test_sums_over_the_steps_stand_beside_a_hot_spot_that_moves():
    """Of the busiest expert 2 × 50 + 4 × 15 = 160 of a mean of 150."""
    found = expert_load(moving((0, 1, 2, 0, 1, 2)))
    row = found.table.iloc[0]
    assert row["rank_imbalance_of_sums"] == 1.0
    assert row["expert_imbalance_of_sums"] == pytest.approx(160 / 150)
    assert row["busiest_rank_share"] == pytest.approx(1 / 3)
    assert "the busiest rank of each step gets 1.80 × the mean rank" in found.notes[0]
    steady = expert_load(moving((1, 1, 1)))
    assert steady.table.iloc[0]["rank_imbalance_of_sums"] == 1.8
    assert "rank 1 gets 1.80 × the mean rank, expert 2 gets 2.00" in steady.notes[0]


@pytest.mark.parametrize("rank", [0, -1])
def test_without_ranks_no_imbalance_of_ranks_is_shown(rank):
    trace = routed([[10, 30, 0, 0]], ranks=1)
    found = expert_load(dataclasses.replace(trace, routing=trace.routing.assign(rank=rank)))
    row, head = found.table.iloc[0], values(found)
    names = ["rank_imbalance", "node_imbalance", "peak_overload", "tax_ns"]
    assert row[names].isna().all()
    assert (row["busiest_rank"], row["peak_step"]) == (-1, -1)
    assert row["expert_imbalance"] == 3.0
    of_ranks = ["worst_rank_imbalance", "worst_rank", "cumulative_overload", "tax_least"]
    assert [head[name] for name in of_ranks] == [None] * 4
    assert any("which rank owns which expert was not recorded" in note for note in found.notes)


def test_routing_of_other_steps_is_named_with_its_steps():
    notes = expert_load(routed([[10, 30]], ranks=2, steps=(7, 8, 9))).notes
    assert "routing: recorded for steps 7 to 9, while figures are of step 0" in notes


def test_routing_of_some_of_the_steps_is_told():
    work = [kernel("up", 100 * step, 50, step=step) for step in range(4)]
    notes = expert_load(routed([[10, 30]], ranks=2, steps=(1, 3), work=work)).notes
    assert "routing: recorded for steps 1, 3, while figures are of steps 0 to 3" in notes


def test_rows_received_without_tokens_are_not_called_no_routing():
    trace = routed([[1, 1]], ranks=2)
    received = RECEIVED.frame([{"step": 4, "layer": 0, "group": 0, "rank": 0, "rows": 9}])
    trace = dataclasses.replace(trace, routing=ROUTING.frame(), received=received)
    (note,) = expert_load(trace).notes
    assert "the rows that each rank received (step 4)" in note


def test_tokens_without_rows_received_are_not_called_no_routing():
    _, (note,) = filled(routed([[1, 3]], ranks=2))
    assert "recorded the tokens of each expert (step 0), not the rows" in note


def test_the_tax_is_the_share_of_the_products_above_the_mean():
    """Means 20 and 20 rows: 100 ns of products are 2.5 ns a row; layer 1 has 35 − 20 more."""
    found = expert_load(routed([[10, 10, 10, 10], [0, 5, 30, 5]], ranks=2))
    assert found.table["tax_ns"].tolist() == [0.0, 37.5]
    assert values(found)["tax_most"] == 37.5
    assert tax(np.array([[20.0, 20.0], [5.0, 35.0]]), 100.0).tolist() == [0.0, 37.5]


def test_what_the_slowest_device_takes_longer_is_the_least_tax():
    work = [kernel("up", 0, 90), kernel("up", 0, 110, device=1)]
    head = values(expert_load(routed([[5, 5, 30, 0]], ranks=2, work=work)))
    assert head["tax_least"] == 10.0  # 110 against a mean of 100
    assert head["tax_most"] == 50.0  # 30 of a mean of 20 rows, 5 ns each


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"steps": (9,)}, "the tax is not known: times and routing are of other steps"),
        (
            {"ops": (hlo("up", "dot", op_name="jit(s)/moe/experts/dot_general"),)},
            "the tax is not known: ",
        ),
    ],
)
def test_without_times_of_the_same_rows_there_is_no_tax(change, why):
    found = expert_load(routed([[10, 30]], ranks=2, **change))
    assert found.table["tax_ns"].isna().all()
    assert found.table["rank_imbalance"].tolist() == [1.5]
    assert values(found)["tax_most"] is None
    assert any(note.startswith(why) for note in found.notes)


def test_doubted_times_leave_the_loads_and_take_the_tax():
    check = Law("durations", "fail", "stamps cannot be", withholds=("breakdown",))
    trace = dataclasses.replace(routed([[10, 30]], ranks=2), trust=(check,))
    found = build(trace, analyze(trace, ["expert_load"]))["analyses"]["expert_load"]
    assert [row["rank_imbalance"] for row in found["rows"]] == [1.5]
    assert [row["tax_ns"] for row in found["rows"]] == [None]
    figures = {own["metric"]: (own["value"], own.get("withheld")) for own in found["headline"]}
    assert figures["tax_least"] == figures["tax_most"] == (None, "durations")
    assert figures["worst_rank_imbalance"] == (1.5, None)
    assert expert_load(trace).table["tax_ns"].notna().all()


def test_components_that_do_not_add_up_take_the_tax_and_its_gain(monkeypatch):
    """A law of the answer, which is not in the trace's own record."""
    trace = routed([[10, 30]], ranks=2)
    assert unbalanced_experts.find(trace).gain_ns > 0
    broken = Law("components", "fail", "they do not add up", withholds=("breakdown", "ops"))
    trace = routed([[10, 30]], ranks=2)
    monkeypatch.setattr("moeprof.analyzers.laws.LAWS", (lambda _: broken,))
    found = build(trace, analyze(trace, ["expert_load"]))["analyses"]["expert_load"]
    withheld = {own["metric"]: own.get("withheld") for own in found["headline"]}
    assert withheld["tax_least"] == withheld["tax_most"] == "components"
    assert unbalanced_experts.find(trace).gain_ns is None


def test_a_layer_without_tokens_has_no_ratio():
    found = expert_load(routed([[0, 0], [4, 4]], ranks=2))
    assert np.isnan(found.table["rank_imbalance"][0])
    assert np.isnan(found.table["peak_overload"][0])
    assert np.isnan(imbalance(np.zeros((1, 2)))).all()
    assert np.isnan(drift(np.zeros((1, 2)), np.ones((1, 2)))).all()
    none = expert_load(routed([[0, 0]], ranks=2))
    assert "no token was routed in these steps" in none.notes
    assert values(none)["cumulative_overload"] is None
    assert values(none)["worst_expert_layer"] is values(none)["worst_expert"] is None


def test_imbalance_of_each_step_and_of_its_worst_layer():
    """6 of 8 tokens are 3 times the mean of four experts; a layer without tokens has no row."""
    step_0, step_1 = [[6, 2, 0, 0], [2, 2, 2, 2]], [[1, 1, 1, 1], [0, 0, 0, 0]]
    work = [kernel("up", 0, 100), kernel("up", 1000, 100, step=1)]
    trace = routed([step_0, step_1], ranks=2, steps=(0, 1), work=work, first_layer=3)
    rows = [list(row) for row in imbalance_by_step(trace).rows()]
    assert rows == [[-1, 0, 3], [-1, 1, 1], [3, 0, 3], [3, 1, 1], [4, 0, 1]]
    assert not len(imbalance_by_step(traced(work, (GEMM,))))


def test_a_run_without_recorded_routing_says_how_to_record_it():
    found = expert_load(traced([kernel("up", 0, 5)], (GEMM,)))
    assert found.table.empty
    assert "moeprof.routing.record(step, tokens_per_expert)" in found.notes[0]


def test_what_needs_no_change_of_the_model_is_named_first():
    assert 0 < NONE.index("capture --routing auto") < NONE.index("moeprof.routing.record")
