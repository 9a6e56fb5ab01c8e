"""What a host did beside its devices: launches, events by kind, allocations, what capture wrote."""

import json

import pytest
from builders.xspace import Plane, event, host, line, xspace

from moeprof.errors import TraceError
from moeprof.ingest import open_run
from moeprof.ingest.planes.host_side import kind_of
from moeprof.tables.store import read_tables, write_tables


def environment(start_ns, stop_ns):
    stats = {"profile_start_time": start_ns, "profile_stop_time": stop_ns}
    return Plane("Task Environment", (), stats=stats)


def gpu(*kernels):
    return Plane("/device:GPU:0", (line("Stream #1(Compute)", *kernels),))


def opened(folder, *planes, process=0):
    file = folder / "plugins" / "profile" / "s" / f"node-p{process}.xplane.pb"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(xspace(*planes))
    return open_run(folder)


def rows(frame, *names):
    return list(zip(*(frame[name].tolist() for name in names), strict=True))


def test_launches_join_device_work_by_host_and_correlation(tmp_path):
    calls = (
        event("cuLaunchKernel", 300, 9, correlation_id=8, device_id=0),
        event("cuGraphLaunch (CudaGraph:3)", 100, 20, correlation_id=7, device_id=0),
        event("BUFFER_FLUSH", 200, 5),
    )
    work = (event("k", 150, 10, correlation_id=7), event("l", 400, 10, correlation_id=8))
    trace = opened(tmp_path, gpu(*work), host(line("main", *calls)))
    assert rows(trace.launches, "name", "correlation_id", "device", "start_ns", "duration_ns") == [
        ("cuGraphLaunch (CudaGraph:3)", 7, 0, 100, 20),
        ("cuLaunchKernel", 8, 0, 300, 9),
    ]
    assert set(trace.events["correlation_id"]) <= set(trace.launches["correlation_id"])


def test_an_annotation_is_what_the_runtime_does_not_name(tmp_path):
    python = (
        event("train", 100, 100, step_num=4),
        event("my_scope", 110, 50),
        event("PjitFunction(step)", 120, 30),
        event("inside the call", 130, 5),
        event("Wait for usage holds", 165, 1),
        event("next_batch", 170, 10),
        event("after", 500, 10),
    )
    trace = opened(tmp_path, host(line("python", *python), line("pool", event("of a pool", 1, 1))))
    assert rows(trace.host_events, "kind", "name", "step") == [
        ("annotation", "train", 4),
        ("annotation", "my_scope", 4),
        ("execute", "PjitFunction(step)", 4),
        ("input", "next_batch", 4),
        ("annotation", "after", -1),
    ]


def test_a_call_holds_what_follows_another_one_in_it_on_its_own_thread_alone(tmp_path):
    first = (
        event("PjitFunction(step)", 100, 300),
        event("PjitFunction(inner)", 110, 10),
        event("in the outer call", 200, 5),  # behind the inner one
    )
    second = (event("PjitFunction(other)", 90, 10), event("beside it", 200, 5))
    trace = opened(tmp_path, host(line("one", *first), line("two", *second)))
    found = rows(trace.host_events, "kind", "line", "name")
    assert [row for row in found if row[0] == "annotation"] == [("annotation", "two", "beside it")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("[0] CommonPjRtLoadedExecutable::Execute (jit_step)", "execute"),
        ("backend_compile_and_load", "compile"),
        ("xla_ffi_python_gpu_callback", "callback"),
        ("np.asarray(jax.Array)", "transfer"),
        ("MemcpyD2H", "transfer"),
        ("hipMemcpyDtoHAsync", "transfer"),
        ("hipMemcpyDtoDAsync", ""),
        ("MemcpyD2D", ""),
        ("block_until_ready", "wait"),
        ("Wait for rendezvous callback", "rendezvous"),
        ("ThenExecuteCallback:GetEvent", ""),
        ("IteratorGetNext", "input"),
        ("loop_add_fusion", ""),
    ],
)
def test_kinds_by_name(name, kind):
    assert kind_of(name) == kind


def test_a_transfer_tells_its_size(tmp_path):
    copy = event("MemcpyD2H", 5, 3, correlation_id=1, memcpy_details="kind_src:x size:4096 async:1")
    trace = opened(tmp_path, host(line("main", copy)))
    assert rows(trace.host_events, "kind", "size_bytes") == [("transfer", 4096)]
    assert len(trace.launches) == 1


def test_allocations_are_of_the_device_in_their_pools_name(tmp_path):
    sizes = {"requested_bytes": 100, "allocation_bytes": 256, "bytes_allocated": 1256}
    more = {"bytes_available": 744, "peak_bytes_in_use": 1300, "bytes_reserved": 0, "addr": 4096}
    told = {**sizes, **more, "allocator_name": "GPU_1_bfc", "region_type": "(null)"}
    calls = (event("MemoryDeallocation", 9, 0, **told), event("MemoryAllocation", 5, 0, **told))
    found = opened(tmp_path, host(line("main", *calls))).allocations
    assert rows(found, "device", "is_free", "start_ns") == [(1, False, 5), (1, True, 9)]
    assert found.iloc[0][["requested_bytes", "allocated_bytes", "peak_bytes"]].tolist() == [
        100,
        1256,
        1300,
    ]
    assert found["region_type"].tolist() == ["", ""]
    assert found["data_type"].tolist() == [-1, -1]


def test_what_capture_dated_is_placed_on_the_clock_of_the_profile(tmp_path):
    start = 1_700_000_000_000_000_000
    told = {
        "schema": "moeprof.host/1",
        "numa_nodes": [0, 1],
        "environment": {"XLA_FLAGS": "--a"},
        "gc_pauses": [
            {"start_epoch_ns": start + 500, "duration_ns": 40, "generation": 2, "collected": 1},
            {"start_epoch_ns": start - 900, "duration_ns": 40, "generation": 0, "collected": 1},
            {"start_epoch_ns": "when", "duration_ns": 40},
        ],
        "compile_events": [
            {"event": "backend", "function": "f", "duration_ns": 30, "end_epoch_ns": start + 90}
        ],
    }
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "p0.json").write_text(json.dumps(told))
    (tmp_path / "meta.json").write_text('{"schema": "moeprof.run/1"}')
    plane = host(line("python", event("train", 100, 10, step_num=1)))
    trace = opened(tmp_path, plane, environment(start, start + 1000))
    assert rows(trace.host_events, "kind", "name", "start_ns", "duration_ns") == [
        ("compile", "backend f", 60, 30),
        ("annotation", "train", 100, 10),
        ("garbage_collection", "generation 2", 500, 40),
    ]
    assert rows(trace.host_facts, "key", "value") == [
        ("numa_nodes", "0,1"),
        ("environment.XLA_FLAGS", "--a"),
    ]
    silent = host(line("python"))  # the profile itself tells of nothing: still by start
    assert opened(tmp_path, silent, environment(start, start + 1000)).host_events[
        "start_ns"
    ].tolist() == [60, 500]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "moeprof.host/1", "gc_pauses": 3}'])
def test_a_damaged_record_tells_nothing(tmp_path, text):
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "p0.json").write_text(text)
    (tmp_path / "meta.json").write_text('{"schema": "moeprof.run/1"}')
    plane = host(line("python", event("train", 100, 10, step_num=1)))
    trace = opened(tmp_path, plane, environment(10**18, 10**18 + 1000))
    assert len(trace.host_events) == 1
    assert trace.host_facts.empty


def test_a_file_that_is_gone_is_told_when_a_table_is_looked_at(tmp_path):
    trace = opened(tmp_path, host(line("main", event("a", 5, 3, correlation_id=1))))
    next(tmp_path.rglob("*.xplane.pb")).unlink()
    with pytest.raises(TraceError, match="node-p0"):
        len(trace.launches)


def test_the_tables_are_stored(tmp_path):
    trace = opened(tmp_path / "run", host(line("main", event("a", 5, 3, correlation_id=1))))
    write_tables(trace, tmp_path / "tables")
    assert read_tables(tmp_path / "tables").launches.equals(trace.launches)
