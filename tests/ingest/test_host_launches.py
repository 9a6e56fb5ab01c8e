"""Host calls that bear an op: what AMD's profiler writes beside the kernels that they launched."""

import json

import pytest
from builders import chrome
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run

ORDER = ("norm", "gemm", "add")
PROGRAM = hlo_proto(
    computation("main", *(op(name, "fusion", "f32[8]") for name in ORDER)),
    schedule={"main": ORDER},
)
EXECUTIONS = 4


def kernels(name_of=lambda name: f"k_{name}"):
    """Four executions, 5,000 ns apart, of three kernels of 700 ns, one every 800 ns."""
    return [
        event(
            name_of(name),
            1000 + 5000 * run + 800 * place,
            700,
            hlo_op=Ref(name),
            program_id=7,
            correlation_id=3 * run + place,
        )
        for run in range(EXECUTIONS)
        for place, name in enumerate(ORDER)
    ]


def calls(**more):
    """The calls of 300 ns each that launched them."""
    return [
        event(
            "hipModuleLaunchKernel",
            500 + 5000 * run + 350 * place,
            300,
            hlo_op=Ref(name),
            program_id=7,
            device_id=47645,
            **({"correlation_id": 3 * run + place} | more),
        )
        for run in range(EXECUTIONS)
        for place, name in enumerate(ORDER)
    ]


def opened(folder, *planes):
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), *planes))
    return open_run(file)


def test_calls_of_the_host_are_no_device_work(tmp_path):
    gpu = Plane("/device:GPU:0", (line("Stream #2", *kernels()),))
    empty = Plane("/device:GPU:1")
    trace = opened(tmp_path, gpu, empty, host(line("Host Threads/7", *calls())))
    assert len(trace.events) == 12
    assert int(trace.events["self_ns"].sum()) == 12 * 700
    assert trace.steps["used"].tolist() == [True] * EXECUTIONS
    assert trace.steps["duration_ns"].tolist() == [2 * 800 + 700] * EXECUTIONS
    assert "other host events" in trace.dropped["what"].tolist()


def test_calls_are_none_even_where_no_device_recorded_anything(tmp_path):
    trace = opened(tmp_path, Plane("/device:GPU:0"), host(line("Host Threads/7", *calls())))
    assert trace.events.empty
    assert {law.check: law.verdict for law in trace.trust}["device_work"] == "fail"


def test_fills_and_copies_by_kernels_are_neither_compute_nor_unattributed(tmp_path):
    helpers = [
        event(name, 3400 + 5000 * run + at, length, correlation_id=100 + 10 * run + at)
        for run in range(EXECUTIONS)
        for name, at, length in (
            ("__amd_rocclr_fillBufferAligned.kd", 0, 90),
            ("__amd_rocclr_copyBuffer.kd", 100, 60),
        )
    ]
    gpu = Plane("/device:GPU:0", (line("Stream #2", *kernels(), *helpers),))
    trace = opened(tmp_path, gpu, host(line("Host Threads/7", *calls())))
    kinds = trace.events.groupby(trace.events["kind"].astype("str"))["self_ns"].sum()
    assert kinds.to_dict() == {"kernel": 12 * 700, "memset": 4 * 90, "copy": 4 * 60}
    in_a_step = trace.events["step"].ne(-1) & trace.events["kind"].ne("kernel")
    told = timeline(trace).table
    assert told["compute_ns"].tolist() == [2100] * EXECUTIONS
    assert int(told["exposed_copy_ns"].sum()) == int(trace.events["self_ns"][in_a_step].sum())


@pytest.mark.parametrize("category", ["kernel", None])
def test_the_same_of_a_json_trace(tmp_path, category):
    more = {"cat": category} if category else {}
    fill = {**chrome.kernel("__amd_rocclr_fillBufferAligned", 10, 3), **more}
    work = {**chrome.kernel("fusion.4", 20, 5), **more}
    del fill["args"]["hlo_op"]
    call = chrome.on_host("hipModuleLaunchKernel", 5, 2, hlo_op="fusion.4", hlo_module="jit_step")
    file = chrome.write(tmp_path / "a.trace.json", chrome.text([fill, work, call]))
    assert "hipModuleLaunchKernel" in json.dumps(call)
    events = open_run(file).events
    found = events[["kind", "duration_ns"]].astype({"kind": "str"}).to_numpy().tolist()
    assert found == [["memset", 3000], ["kernel", 5000]]
