"""What the host did beside its devices, and several ranks in one file."""

import json

import pytest
from kineto_builder import Kineto
from oracle import DATA, ON_GPU, events

from moeprof.errors import TraceError
from moeprof.ingest.run import open_run


def test_launches_are_the_calls_whose_id_is_that_of_work():
    path = DATA / "full.pt.trace.json.gz"
    every = events(path)
    ids = {e["args"]["correlation"] for e in every if e["cat"] in ON_GPU}
    calls = sorted(
        (e["name"], e["args"]["correlation"])
        for e in every
        if e["cat"] in ("cuda_runtime", "cuda_driver") and e["args"].get("correlation") in ids
    )
    found = open_run(path).launches
    pairs = zip(found["name"].astype(str), found["correlation_id"], strict=True)
    assert sorted(pairs) == calls
    assert set(found["device"]) == {0}
    assert found["start_ns"].is_monotonic_increasing


def test_kinds_of_what_a_host_does(tmp_path):
    kineto = Kineto()
    kineto.step(3, 100, 400)
    kineto.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 110, 20)
    kineto.annotation("my part", 140, 20)
    op = kineto.op("aten::mm", 200, 20)
    kineto.kernel("mm", 210, 5, launch=205, op=op)
    kineto._event("cuda_runtime", "cudaStreamSynchronize", 300, 50, cbid=131, correlation=900)
    kineto._event("cuda_runtime", "cudaMemcpy", 600, 5, cbid=31, correlation=901)
    found = open_run(kineto.write(tmp_path / "a.pt.trace.json")).host_events
    table = zip(found["kind"], found["step"], found["duration_ns"], strict=True)
    assert list(table) == [
        ("input", 3, 20_000),
        ("annotation", 3, 20_000),
        ("wait", 3, 50_000),
        ("transfer", -1, 5_000),
    ]


def test_two_files_of_one_rank_are_refused(tmp_path):
    for name in ("a", "b"):
        kineto = Kineto(3, 4)
        kineto.step(1, 0, 1000)
        op = kineto.op("aten::mm", 20, 20)
        kineto.kernel("mm", 30, 5, launch=25, op=op)
        kineto.write(tmp_path / f"{name}.pt.trace.json")
    with pytest.raises(TraceError, match=r"found two of\s+rank 3"):
        open_run(tmp_path)


def test_ranks_in_one_file_keep_their_own_ops(tmp_path):
    """Tools that merge files give each rank processes of its own, and leave ids as they were."""
    merged = []
    for rank in (0, 1):
        kineto = Kineto()
        kineto.step(1, 0, 1000)
        kineto.function(f"nn.Module: Stage{rank}_0", 10, 50)
        inputs = [([4, 8], "float"), ([8, 16 * (rank + 1)], "float")]
        op = kineto.op("aten::mm", 20, 20, inputs=inputs)
        kineto.kernel(f"kernel {rank}", 30, 5, launch=25, op=op)
        for event in kineto.events:
            event["pid"] = f"[rank{rank}] {event['pid']}"
        merged += kineto.events
    path = tmp_path / "merged.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": merged}))
    trace = open_run(path)
    assert sorted(trace.devices["rank"]) == [0, 1]
    rows = trace.events["instruction"].to_numpy()
    shapes = dict(zip(trace.events["name"].astype(str), trace.hlo_ops["shape"][rows], strict=True))
    assert shapes == {"kernel 0": "f32[4,16]", "kernel 1": "f32[4,32]"}


def test_work_before_its_launch_is_shifted_behind_it(tmp_path):
    """A device's clock 600 µs behind: no launch latency is told from it."""
    kineto = Kineto()
    for step in (1, 2, 3):
        kineto.step(step, 2000 * step, 1900)
        for n in range(10):
            at = 2000 * step + 700 + 100 * n
            op = kineto.op("aten::mm", at, 20)
            kineto.kernel("mm", at + 10 - 600, 5, launch=at + 5, op=op)
    trace = open_run(kineto.write(tmp_path / "a.pt.trace.json"))
    law = next(law for law in trace.trust if law.check == "causality")
    assert law.verdict == "warn"
    starts = trace.events.sort_values("correlation_id")["start_ns"].to_numpy()
    calls = trace.launches.sort_values("correlation_id")["start_ns"].to_numpy()
    assert (starts >= calls).all()


def test_large_groups_are_those_that_the_trace_lists(tmp_path):
    """The list at a call is cut behind 30 ranks."""
    kineto = Kineto(0, 64)
    groups = [{"pg_name": "ep", "pg_size": 64, "ranks": list(range(64))}]
    kineto.head["distributedInfo"]["pg_config"] = groups
    kineto.step(1, 0, 1000)
    kineto.collective("allreduce", 50, 100, group="ep", ranks=list(range(64)))
    for event in kineto.events:
        if "Process Group Ranks" in event["args"]:
            event["args"]["Process Group Ranks"] = "[0, 1, ..., 63]"
    trace = open_run(kineto.write(tmp_path / "a.pt.trace.json"))
    (groups,) = trace.hlo_ops["replica_groups"][trace.hlo_ops["opcode"] == "all-reduce"]
    assert groups == "{{" + ",".join(map(str, range(64))) + "}}"
