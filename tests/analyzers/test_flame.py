"""Device time as trees, by hand and on real captures."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.drawings.flame import (
    DEEPEST,
    IN_NO_SCOPE,
    NO_SCOPE,
    NO_SOURCE,
    ROOT,
    Amount,
    flame,
    grown,
    pruned,
    rows,
    with_trunk,
)
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.ingest import open_run
from moeprof.tables.trace import MODULES

DATA = Path(__file__).parents[1] / "data"
PART = ("attention", "forward")
LOOP = "/src/model.py:8:scan\n/src/train.py:3:step"
FRAMES = f"/src/model.py:30:Moe.<locals>.dispatch\n{LOOP}\n{LOOP}"
LIBRARY = "/lib/site-packages/jax/_src/numpy/sort.py:9:sort"
SCOPED = "jit(step)/transpose(jvp(moe))/while/body/checkpoint"


def made():
    """1000 ns of a step: a dispatch forward and backward, a norm, a product, and a bare kernel."""
    ops = (
        hlo("send", "add", shape="f32[8]", op_name="jit(step)/jvp(moe)/while/body/dispatch/add",
            frames=f"{LIBRARY}\n{FRAMES}"),
        hlo("back", "add", shape="f32[8]", op_name=f"{SCOPED}/dispatch/add", frames=FRAMES),
        hlo("norm", "add", shape="f32[8]", op_name=f"{SCOPED}/norm/mul", frames=LOOP),
        hlo("plain", "add", shape="f32[8]", op_name="jit(step)/mul"),
    )  # fmt: skip
    work = (
        kernel("send", 0, 400), kernel("back", 400, 250), kernel("norm", 700, 200),
        kernel("plain", 900, 100), kernel("", 1000, 50, "memcpy", module=-1),
    )  # fmt: skip
    return traced(work, ops)


def paths(trace, tree, column="per_step_ns"):
    """A column of a tree by path."""
    table = flame(trace).table
    known, found = {-1: ()}, {}
    for row in table[table["tree"] == tree].to_dict("records"):
        known[row["node"]] = (*known[row["parent"]], row["name"])
        found[known[row["node"]][1:]] = row[column]
    return found


def test_time_is_summed_by_scope_without_the_words_of_jax():
    program = "no program named"
    assert paths(made(), "scope") == {
        (): 1000.0,
        (program,): 1000.0,
        (program, "moe"): 850.0,
        (program, "moe", "dispatch"): 650.0,
        (program, "moe", "dispatch", "send"): 400.0,
        (program, "moe", "dispatch", "back"): 250.0,
        (program, "moe", "norm"): 200.0,
        (program, "moe", "norm", "norm"): 200.0,
        (program, IN_NO_SCOPE): 100.0,
        (program, IN_NO_SCOPE, "plain"): 100.0,
        (program, NO_SCOPE): 50.0,
        (program, NO_SCOPE, "memcpy"): 50.0,
    }


def test_time_is_summed_by_the_calls_of_the_program_alone():
    """The loop's traceback stands twice, and a library's frame is innermost."""
    script = "step  train.py:3 › scan  model.py:8"
    assert paths(made(), "source") == {
        (): 1000.0,
        (script,): 850.0,
        (script, "Moe.dispatch  model.py:30"): 650.0,
        (NO_SOURCE,): 150.0,
    }
    own = paths(made(), "source", "own_ns")
    assert (own[(script,)], own[()], own[(NO_SOURCE,)]) == (200.0, 0.0, 150.0)


def test_an_op_of_a_library_alone_keeps_its_innermost_line():
    ops = (hlo("sort", "sort", shape="f32[8]", op_name="jit(s)/sort", frames=LIBRARY),)
    assert ("sort  sort.py:9",) in paths(traced([kernel("sort", 0, 9)], ops), "source")


def test_what_calls_the_program_while_it_is_captured_is_no_line_of_it():
    """An optimizer in a folder of the same name is the user's."""
    frames = (
        "/home/u/moeprof/examples/optimizer.py:7:update\n/src/train.py:3:step\n"
        "/lib/site-packages/moeprof/recording/jit_proxy.py:90:JitProxy.__call__\n"
        "/home/u/moeprof/capture/observe.py:40:observed_call"
    )
    ops = (hlo("add", "add", shape="f32[8]", op_name="jit(s)/add", frames=frames),)
    trace = traced([kernel("add", 0, 9)], ops)
    assert list(paths(trace, "source")) == [
        (), ("step  train.py:3 › update  optimizer.py:7",),
    ]  # fmt: skip


def test_what_two_merged_ops_share_is_the_scope_of_both():
    name = "jit(s)/jvp()/moe/(dispatch/add:combine/mul)"
    ops = (hlo("both", "add", shape="f32[8]", op_name=name),)
    scope = paths(traced([kernel("both", 0, 9)], ops), "scope")
    assert ("no program named", "moe", "both") in scope


def test_a_kernel_of_a_guessed_op_has_no_scope():
    ops = (hlo("add", "add", shape="f32[8]", op_name="jit(s)/moe/add"),)
    guess = kernel("add", 0, 9, "k1", evidence="graph", confidence=0.3)
    assert ("no program named", NO_SCOPE, "k1") in paths(traced([guess], ops), "scope")


def test_a_node_is_what_most_of_its_time_is():
    """Of 650 ns of dispatch 400 run forward, of 1000 in all 200 are a norm's."""
    table = flame(made()).table
    row = table[table["name"] == "dispatch"].iloc[0]
    assert (row["component"], row["component_share"]) == ("dispatch", 1.0)
    assert (row["phase"], row["phase_share"]) == ("forward", pytest.approx(400 / 650))
    root = table[table["name"] == ROOT].iloc[0]
    assert (root["component"], root["component_share"], root["calls"]) == ("dispatch", 0.65, 5.0)


def test_times_are_means_over_devices_and_programs_have_their_names():
    ops = (hlo("k", "add", shape="f32[8]", op_name="jit(s)/moe/add"),)
    trace = traced([kernel("k", 0, 30), kernel("k", 0, 10, host="b")], ops)
    named = {name: 0 for name in MODULES.names} | {"module": 7, "name": "jit_step"}
    vars(trace)["modules"] = MODULES.frame([named])
    assert paths(trace, "scope")[("jit_step", "moe")] == 20.0


def test_without_device_work_there_is_no_node():
    found = flame(traced([]))
    assert found.table.empty
    assert found.headline[0].value is None
    assert found.notes[0] == "none in this trace: no device work"


def test_small_nodes_are_merged_and_none_is_lost():
    amounts = [Amount(("a", f"x{n}"), n, 1, PART) for n in range(1, 12)]
    amounts.append(Amount(("b", "deep", "deeper"), 3, 1, ("norm", "backward")))
    nodes = {row.branch.name: row.branch for row in rows(pruned(grown("all", amounts), 5))}
    assert list(nodes) == ["all", "a", *(f"x{n}" for n in range(11, 4, -1)), "… 4 smaller", "b"]
    rest, only = nodes["… 4 smaller"], nodes["b"]
    assert (rest.ns, rest.own_ns, rest.calls) == (1 + 2 + 3 + 4, 10, 4)
    assert (only.own_ns, only.below, only.leading().component) == (3, {}, "norm")
    assert sum(branch.own_ns for branch in nodes.values()) == nodes["all"].ns == 69


def test_a_path_without_end_is_cut():
    endless = Amount(tuple(map(str, range(5000))), 7, 1, PART)
    found = list(rows(pruned(grown("all", [endless, endless]), 1)))
    assert len(found) == DEEPEST + 1
    assert found[-1].branch.own_ns == 14


def test_the_trunk_ends_where_time_is_its_own():
    tree = with_trunk(
        grown("all", [Amount(("a", "b", "c"), 5, 1, PART), Amount(("a", "b"), 1, 1, PART)])
    )
    assert [row.branch.name for row in rows(tree)] == ["all", "a › b", "c"]


@pytest.mark.parametrize(
    "run", ["gpu/sparse-gmm", "gpu/sparse-gmm-deepep-graphs",
            "maxtext/deepseek3_tiny_ep8_cf125.xplane.pb.gz"],
)  # fmt: skip
def test_both_trees_of_a_capture_are_its_breakdown(run):
    trace = open_run(DATA / run)
    found, whole = flame(trace), breakdown(trace)
    op_time = {m.metric: m.value for m in whole.headline}["op_time"]
    assert found.headline[0].value == pytest.approx(op_time, rel=1e-12)
    for _, tree in found.table.groupby("tree"):
        assert tree["own_ns"].sum() == pytest.approx(op_time, rel=1e-12)
        assert tree["per_step_ns"].iloc[0] == found.headline[0].value
        below = tree[tree["parent"] >= 0].groupby("parent")["per_step_ns"].sum()
        nodes = tree.set_index("node")
        parents = nodes.loc[below.index]
        assert (below + parents["own_ns"]).to_numpy() == pytest.approx(
            parents["per_step_ns"].to_numpy(), rel=1e-12
        )
        assert (nodes["share"].iloc[1:] <= 1).all()
    calls = found.table["calls"][found.table["parent"] == -1]
    assert calls.to_numpy() == pytest.approx(whole.table["calls"].sum())
