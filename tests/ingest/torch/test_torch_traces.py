"""Traces of a small MoE training step under PyTorch's profiler, on one H200 and on a CPU."""

import numpy as np
import pytest
from oracle import DATA, busy_ns, device_events, time_by_op

from moeprof.analyzers.attribution import work_in_steps
from moeprof.analyzers.costs.table import costs_of
from moeprof.ingest.run import open_run
from moeprof.tables.intervals import cover

FILES = ("full", "shapes", "annotated", "inference", "nccl", "compiled")


@pytest.fixture(scope="module")
def traces():
    return {name: open_run(DATA / f"{name}.pt.trace.json.gz") for name in (*FILES, "cpu")}


@pytest.fixture(scope="module")
def ranks():
    return open_run(DATA / "ranks")


def named(trace):
    """Work with the path of its op."""
    rows = trace.events["instruction"].to_numpy()
    paths = trace.hlo_ops["op_name"].to_numpy()[np.maximum(rows, 0)]
    return trace.events.assign(path=np.where(rows >= 0, paths, ""))


@pytest.mark.parametrize("name", FILES)
def test_busy_time_is_the_union_of_the_work(traces, name):
    work = traces[name].events
    start = work["start_ns"].to_numpy()
    union = cover(start, start + work["duration_ns"].to_numpy()).total
    path = DATA / f"{name}.pt.trace.json.gz"
    assert len(work) == len(device_events(path))
    assert union == pytest.approx(busy_ns(path), rel=1e-3)


@pytest.mark.parametrize("name", FILES)
def test_time_of_each_op_is_that_of_the_work_with_its_id(traces, name):
    """By external ids in the file; work outside of any op carries the id of an annotation."""
    work = named(traces[name])
    work["op_name"] = work["path"].str.rpartition("/")[2]
    found = work.groupby("op_name")["duration_ns"].agg(["sum", "size"])
    told = time_by_op(DATA / f"{name}.pt.trace.json.gz")
    assert told
    for op, (time, pieces) in told.items():
        assert found.loc[op, "size"] == pieces, op
        assert found.loc[op, "sum"] == pytest.approx(time, rel=1e-3), op


@pytest.mark.parametrize("name", [*FILES, "cpu"])
def test_nearly_no_work_is_without_an_op(traces, name):
    work = work_in_steps(traces[name]).pandas()
    lost = work["self_ns"][work["component"] == "unattributed"].sum()
    assert lost < 0.05 * work["self_ns"].sum()


@pytest.mark.parametrize("name", ["full", "shapes", "annotated"])
def test_phases_of_the_experts_products(traces, name):
    """Two layers of two products: forward, the same recomputed, and two gradients of each."""
    table = work_in_steps(traces[name]).pandas()
    ops = table[table["op"].astype(str).str.startswith("grouped_mm")]
    runs = ops.drop_duplicates(["step", "op"]).groupby(["step", "phase"], observed=True).size()
    for step in ops["step"].unique():
        assert runs[step].to_dict() == {"forward": 4, "recompute": 4, "backward": 8}


LINES = {
    65: {"attention"},
    82: {"router"},
    99: {"grouped_gemm", "expert_elementwise"},
    105: {"grouped_gemm", "expert_elementwise"},
    136: {"permute"},
    144: {"unpermute"},
    204: {"embedding", "norm", "head"},
}
"""Lines of the script that calls the ops -> what stands there."""


def test_parts_are_those_of_the_lines(traces):
    """Work whose part is told, not guessed, against the line of the model that asked for it."""
    trace = traces["full"]
    work = work_in_steps(trace).pandas()
    frames = trace.hlo_ops["frames"].to_numpy()[work["instruction"].to_numpy()]
    lines = [int(str(text).split("\n")[0].split(":")[1]) if text else 0 for text in frames]
    checked = wrong = 0
    for line, part, time in zip(lines, work["component"], work["self_ns"], strict=True):
        if line in LINES and part not in ("other", "moe_other"):
            checked += time
            wrong += 0 if part in LINES[line] else time
    assert checked > 0.6 * work["self_ns"].sum()
    assert wrong <= 0.01 * checked


def test_shared_expert_without_a_name_is_no_routed_one(traces):
    """``nn.Sequential`` in the layer says no more than that it is in the layer."""
    work = work_in_steps(traces["full"]).pandas()
    paths = traces["full"].hlo_ops["op_name"].to_numpy()[work["instruction"].to_numpy()]
    is_shared = np.array(["/Sequential_" in str(path) for path in paths])
    assert set(work["component"][is_shared]) == {"moe_other"}


def test_flops_by_hand(traces):
    costs = costs_of(traces["shapes"]).pandas()
    by_op = costs.assign(stem=costs["op"].str.partition(".")[0])
    heads = by_op[(by_op["component"] == "head") & (by_op["phase"] == "forward")]
    assert heads["flops"].tolist() == [2 * 256 * 256 * 1024]  # 256 tokens, hidden 256, vocab 1024
    attention = by_op[(by_op["stem"] == "cudnn_attention_forward") & (by_op["phase"] == "forward")]
    # causal: half of Q·Kᵀ and P·V, 2 sequences, 4 heads of 64, 128 tokens
    assert set(attention["flops"]) == {2 * (2 * 4 * 128 * 128 // 2) * (64 + 64)}
    backward = by_op[by_op["stem"] == "cudnn_attention_backward"]
    assert set(backward["flops"]) == {2 * (2 * 4 * 128 * 128 // 2) * 5 * 64}
    products = by_op[(by_op["stem"] == "grouped_mm") & (by_op["phase"] == "forward")]
    # 512 (token, expert) pairs by [256, 1024] and [512, 256]
    assert sorted(set(products["flops"])) == [2 * 512 * 512 * 256, 2 * 512 * 256 * 1024]


def test_messages_of_nccl(traces):
    """Gathers of 262,144 and all-to-alls of 512 · 256 elements of bf16, one rank each."""
    ops = traces["nccl"].hlo_ops
    sizes = ops.groupby("opcode")["size_bytes"].agg(lambda column: sorted(set(column)))
    assert sizes["all-gather"] == [262144 * 2]
    assert sizes["all-to-all"] == [512 * 256 * 2]
    assert set(ops["replica_groups"][ops["opcode"] == "all-to-all"]) == {"{{0}}"}


def test_collectives_of_ranks_are_the_same_calls(ranks):
    """Two gathers, one all-to-all each way per layer and phase, a sum per weight: on both ranks."""
    ops = ranks.hlo_ops
    work = work_in_steps(ranks).pandas()
    names = ops["opcode"].to_numpy()[work["instruction"].to_numpy()]
    calls = work.assign(opcode=names)
    calls = calls[calls["opcode"].isin(["all-gather", "all-to-all", "all-reduce"])]
    counts = calls.groupby(["host", "step", "opcode"], observed=True).size().unstack()
    assert (counts["all-gather"] == 2).all()
    assert (counts["all-to-all"] == 12).all()
    assert (counts["all-reduce"] == 21).all()
    hosts = calls.groupby(["step", "op"], observed=True)["host"].nunique()
    assert (hosts == 2).all()
    assert sorted(ranks.devices["rank"]) == [0, 1]


def test_work_of_a_cpu_is_its_threads_time_and_each_stretch_of_one_op(traces):
    work = traces["cpu"].events
    ordered = work.sort_values(["line", "start_ns"])
    ends = ordered["start_ns"] + ordered["duration_ns"]
    is_same = (
        ordered["line"].astype(str).to_numpy()[1:] == ordered["line"].astype(str).to_numpy()[:-1]
    )
    assert (ordered["start_ns"].to_numpy()[1:] >= ends.to_numpy()[:-1])[is_same].all()
    start = work["start_ns"].to_numpy()
    lines = work.groupby("line", observed=True)
    union = sum(
        cover(start[rows], start[rows] + work["duration_ns"].to_numpy()[rows]).total
        for rows in lines.indices.values()
    )
    assert work["self_ns"].sum() == union


def test_a_compiled_region_is_named_by_no_op_in_it(traces):
    """All of it is called from one line: that it has grouped products says nothing of the rest."""
    work = work_in_steps(traces["compiled"]).pandas()
    paths = traces["compiled"].hlo_ops["op_name"].to_numpy()[work["instruction"].to_numpy()]
    inside = np.array(["Torch-Compiled Region" in str(path) for path in paths])
    experts = inside & (work["component"] == "grouped_gemm").to_numpy()
    assert {str(path).rpartition("/")[2] for path in paths[experts]} == {"aten::_grouped_mm"}
    assert set(work["component"][inside]) == {"grouped_gemm", "attention", "other"}


def test_kernels_of_a_graph_are_known_by_name_alone():
    path = DATA / "graphs.pt.trace.json.gz"
    trace = open_run(path)
    start = trace.events["start_ns"].to_numpy()
    union = cover(start, start + trace.events["duration_ns"].to_numpy()).total
    assert union == pytest.approx(busy_ns(path), rel=1e-3)
    assert (trace.events["instruction"] == -1).all()
    laws = {law.check: law for law in trace.trust}
    assert laws["resolved"].verdict == laws["programs"].verdict == "warn"
    assert "CUDA graph" in laws["resolved"].detail


def test_what_the_profiler_was_not_asked_for_is_said(traces):
    laws = {law.check: law for law in traces["annotated"].trust}
    assert laws["programs"].verdict == "warn"
    assert "record_shapes=True" in laws["programs"].detail
    assert "with_stack=True" in laws["programs"].detail
    whole = {law.check: law for law in traces["full"].trust}
    assert whole["programs"].verdict == whole["forward_ops"].verdict == "ok"
