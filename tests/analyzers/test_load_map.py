import dataclasses

import numpy as np
import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers import analyze
from moeprof.analyzers.drawings.load_map import load_map
from moeprof.analyzers.drawings.rank_map import ONE_RANK, rank_map
from moeprof.analyzers.questions.expert_load import NONE, expert_load
from moeprof.answers import cells as module
from moeprof.answers.cells import per_cell
from moeprof.tables.law import Law
from moeprof.tables.routing import RECEIVED, ROUTING

GEMM = hlo("up", "custom-call", custom_call_target="moeprof_grouped_gemm")


def routed(tokens, ranks, first_layer=0):
    """`tokens` [steps][layers][experts]; experts lie on ranks in equal blocks."""
    array = np.array(tokens)
    rows = [
        {"step": s, "layer": n + first_layer, "expert": e, "rank": e * ranks // array.shape[2]}
        | {"tokens": int(array[s, n, e])}
        for s, n, e in np.ndindex(array.shape)
    ]
    work = [kernel("up", 100 * step, 50, step=step) for step in range(len(array))]
    trace = traced(work, (GEMM,))
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    return dataclasses.replace(
        trace, meta=meta, routing=ROUTING.frame(rows), received=RECEIVED.frame()
    )


def cells(analysis):
    return list(analysis.table.itertuples(index=False, name=None))


def values(analysis):
    return {m.metric: m.value for m in analysis.headline}


def test_a_cell_is_the_mean_of_the_steps_over_the_mean_of_the_layer():
    """Steps (4, 0, 2, 2) and (8, 0, 0, 0): means 6, 0, 1, 1 of a mean of 2."""
    found = load_map(routed([[[4, 0, 2, 2]], [[8, 0, 0, 0]]], ranks=2, first_layer=3))
    assert cells(found) == [
        (3, 0, 0, 6.0, 3.0),
        (3, 1, 0, 0.0, 0.0),
        (3, 2, 1, 1.0, 0.5),
        (3, 3, 1, 1.0, 0.5),
    ]
    assert values(found) == {
        "layers": 1, "experts": 4, "ranks": 2, "steps": 2, "experts_per_cell": 1,
    }  # fmt: skip


def test_ranks_get_the_sum_of_their_experts():
    found = rank_map(routed([[[4, 0, 2, 2], [0, 0, 1, 3]]], ranks=2))
    assert cells(found) == [(0, 0, 4.0, 1.0), (0, 1, 4.0, 1.0), (1, 0, 0.0, 0.0), (1, 1, 4.0, 2.0)]


def test_the_largest_cell_of_a_layer_is_what_expert_load_says_of_the_sums():
    tokens = np.random.default_rng(0).integers(0, 500, (3, 5, 16))
    trace = routed(tokens, ranks=4)
    summed = expert_load(trace).table.set_index("layer")
    experts = load_map(trace).table
    top = experts.loc[experts.groupby("layer")["load_factor"].idxmax()].set_index("layer")
    assert top["load_factor"].to_numpy() == pytest.approx(
        summed["expert_imbalance_of_sums"].to_numpy()
    )
    assert top["expert"].tolist() == tokens.sum(axis=0).argmax(axis=1).tolist()
    ranks = rank_map(trace).table.groupby("layer")["load_factor"].max()
    assert ranks.to_numpy() == pytest.approx(summed["rank_imbalance_of_sums"].to_numpy())
    assert experts["tokens"].sum() == pytest.approx(tokens.sum() / 3)


@pytest.mark.parametrize("drawn", [load_map, rank_map])
def test_a_hot_spot_that_moves_is_told_beside_the_even_map(drawn):
    """Of 4 experts one gets 13 of 16 pairs, another one in each of 4 steps: 13 / 4 = 3.25."""
    tokens = [[[13 if e == s else 1 for e in range(4)]] for s in range(4)]
    found = drawn(routed(tokens, ranks=4))
    assert found.table["load_factor"].tolist() == [1.0] * 4
    assert any("gets 3.25 × the mean where the map shows 1.00 ×" in n for n in found.notes)
    steady = drawn(routed([[[13, 1, 1, 1]]] * 4, ranks=4))
    assert not any("where the map shows" in note for note in steady.notes)


def test_a_layer_without_tokens_has_no_load_factor():
    found = load_map(routed([[[0, 0], [1, 3]]], ranks=1)).table
    assert np.isnan(found["load_factor"]).tolist() == [True, True, False, False]


def test_an_expert_that_moves_has_no_rank():
    trace = routed([[[1, 1]], [[1, 1]]], ranks=2)
    moved = trace.routing.assign(rank=[0, 1, 1, 1])
    found = load_map(dataclasses.replace(trace, routing=moved))
    assert found.table["rank"].tolist() == [-1, 1]


def test_neighbours_that_share_a_cell_show_the_busiest(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 4)
    found = load_map(routed([[[1, 9, 2, 2, 6], [5, 1, 0, 0, 4]]], ranks=1))
    assert found.table["expert"].tolist() == [1, 4, 0, 4]  # cells of 3: 0–2 and 3–4
    assert found.table["load_factor"].tolist() == [2.25, 1.5, 2.5, 2.0]
    assert values(found)["experts_per_cell"] == 3
    assert found.notes[0].startswith("3 neighbouring experts share a cell")


@pytest.mark.parametrize(
    ("layers", "experts", "bundle"),
    [(61, 256, 1), (100, 512, 2), (61, 100_000, 153), (50_000, 8, 8)],
)
def test_cells_are_few_enough_to_draw(layers, experts, bundle):
    assert per_cell(layers, experts) == bundle


def test_what_is_missing_is_said():
    bare = traced([kernel("up", 0, 100)], (GEMM,))
    for drawing in (load_map, rank_map):
        assert drawing(bare).table.empty
        assert drawing(bare).notes == (NONE,)
    alone = rank_map(routed([[[1, 3]]], ranks=1))
    assert (alone.table.empty, alone.notes) == (True, (ONE_RANK,))


def test_it_is_withheld_with_the_question_that_it_illustrates():
    trace = routed([[[1, 3]]], ranks=2)
    failed = Law("routing", "fail", "the record is cut", withholds=("expert_load",))
    found = analyze(dataclasses.replace(trace, trust=(failed,)), ["load_map", "rank_map"])
    assert [f.table.empty for f in found.values()] == [True, True]
