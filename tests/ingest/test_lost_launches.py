"""Launches on the host whose work is not in the record.

Each step launches five kernels of 80 ns, one every 100, on each GPU: 400 ns of work in 480.
"""

from dataclasses import replace

import pytest
from builders import gpu
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run
from moeprof.tables.law import Need

OPS = ("norm", "gemm", "gate", "up", "down")


def opened(folder, data):
    file = folder / "node0.xplane.pb"
    file.write_bytes(data)
    return open_run(file)


def law(trace, name):
    return next(law for law in trace.trust if law.check == name)


def headline(analysis, name):
    return next(metric.value for metric in analysis.headline if metric.metric == name)


def test_with_every_kernel_all_laws_hold(tmp_path):
    trace = opened(tmp_path, gpu.gpu_file(OPS, steps=4, devices=3))
    found = law(trace, "launches")
    assert (found.verdict, found.expected, found.found) == ("ok", 60, 60)
    assert (law(trace, "devices").verdict, law(trace, "devices").found) == ("ok", 3)
    assert {law(trace, name).verdict for name in ("last_kernels", "stream_time")} == {"ok"}
    assert headline(breakdown(trace), "op_time") == 400


def test_a_device_that_lost_kernels_in_every_step_is_left_out(tmp_path):
    # GPU 2 has the first kernel of each step: 16 of its 20 launches have none
    data = gpu.gpu_file(OPS, 4, 3, lambda device, step, place: device != 2 or place == 0)
    trace = opened(tmp_path, data)
    found = law(trace, "launches")
    assert found.verdict == "fail"
    assert (found.expected, found.found, found.unit) == (60, 44, "launches")
    assert "16 of GPU 2's 20 launches have no kernel (80.0 %; 26.7 % of all 60)" in found.detail
    assert "figures are those of 2 GPU(s)" in found.detail
    assert [scope.device for scope in found.scopes] == [2]
    assert found.breaks == (Need.EVERY_DEVICE,)
    assert trace.steps["used"].tolist() == [True] * 4
    assert headline(breakdown(trace), "op_time") == 400
    assert timeline(trace).table["device"].unique().tolist() == [0, 1]
    assert set(trace.executions["device"]) == {0, 1}
    assert (trace.meta.devices, trace.meta.devices_left_out) == (2, 1)
    dropped = dict(zip(trace.dropped["what"], trace.dropped["count"], strict=True))
    assert dropped["work of devices that lack most of it"] == 4


def test_steps_from_which_on_a_device_lost_some_are_not_used(tmp_path):
    # from step 5 of 8 on GPU 0 lacks the second kernel
    data = gpu.gpu_file(
        OPS, 8, 2, lambda device, step, place: (device, place) != (0, 1) or step < 5
    )
    trace = opened(tmp_path, data)
    found = law(trace, "launches")
    assert found.verdict == "warn"
    assert "3 of GPU 0's 40 launches have no kernel (7.5 %; 3.8 % of all 80)" in found.detail
    assert "all from step 5 on" in found.detail
    assert "3 step(s) that lack work are not used" in found.detail
    assert trace.steps["used"].tolist() == [True] * 5 + [False] * 3
    assert trace.steps["reason"].iloc[5] == "launches of GPU 0 without their kernels"
    assert headline(breakdown(trace), "op_time") == 400


def test_where_every_step_of_the_only_device_lacks_work_no_time_is_told(tmp_path):
    data = gpu.gpu_file(OPS, 4, 1, lambda device, step, place: place != step % 5)
    trace = opened(tmp_path, data)
    found = law(trace, "launches")
    assert (found.verdict, found.breaks) == ("fail", (Need.DEVICE_TIMES,))
    assert (found.expected, found.found) == (20, 16)
    assert not trace.steps["used"].any()


def test_a_device_without_any_kernel_is_missed(tmp_path):
    trace = opened(tmp_path, gpu.gpu_file(OPS, 4, 3, lambda device, step, place: device != 1))
    assert "20 of GPU 1's 20 launches have no kernel" in law(trace, "launches").detail
    found = law(trace, "devices")
    assert (found.verdict, found.expected, found.found, found.unit) == ("fail", 3, 2, "GPUs")
    assert "3 GPUs ran programs, 1 of them without a record (GPU 1)" in found.detail
    assert trace.steps["used"].all()
    assert headline(breakdown(trace), "op_time") == 400


def test_where_no_launch_shares_an_id_with_any_work_none_is_compared(tmp_path, monkeypatch):
    threads = [gpu.thread(device, 4, OPS) for device in (0, 1)]
    monkeypatch.setattr(gpu, "number", lambda d, step, place: 10**6 * (d + 1) + 100 * step + place)
    work = [gpu.kernels(device, 4, OPS, lambda *_: True) for device in (0, 1)]
    planes = [Plane(f"/device:GPU:{d}", (line(gpu.STREAM, *mine),)) for d, mine in enumerate(work)]
    data = xspace(metadata(p7=gpu.program(OPS)), *planes, host(gpu.main_thread(4), *threads))
    trace = opened(tmp_path, data)
    assert law(trace, "launches").verdict == "unchecked"
    assert len(trace.events) == 40


def test_devices_are_missed_by_their_executions_alone(tmp_path):
    work = [gpu.kernels(device, 4, OPS, lambda *_: True) for device in (1, 3)]
    planes = [Plane(f"/device:GPU:{d}") for d in (0, 2)]
    planes += [
        Plane(f"/device:GPU:{d}", (line(gpu.STREAM, *mine),))
        for d, mine in zip((1, 3), work, strict=True)
    ]
    threads = [gpu.thread(d, 4, OPS) for d in (1, 3)]
    silent = [gpu.thread(d, 4, ()) for d in (0, 2)]
    data = xspace(
        metadata(p7=gpu.program(OPS)), *planes, host(gpu.main_thread(4), *threads, *silent)
    )
    trace = opened(tmp_path, data)
    assert law(trace, "launches").verdict == "ok"
    found = law(trace, "devices")
    assert (found.expected, found.found) == (4, 2)
    assert "(GPU 0, GPU 2)" in found.detail


def test_the_last_launches_may_not_have_run_when_the_capture_ended(tmp_path):
    kept = {(step, place) for step in range(5) for place in range(5)} - {(4, 3), (4, 4)}
    data = gpu.gpu_file(OPS, 5, 1, lambda device, step, place: (step, place) in kept)
    trace = opened(tmp_path, data)
    found = law(trace, "launches")
    assert found.verdict == "ok"
    assert "2 had not run when the capture ended" in found.detail
    assert trace.steps["used"].tolist() == [True] * 4 + [False]


def test_other_calls_of_the_driver_bring_no_work(tmp_path):
    others = [
        event(name, 1_600 + 10 * n, 2, correlation_id=90_000 + n, device_id=0)
        for n, name in enumerate(("cuStreamSynchronize", "cuMemAlloc_v2", "hipEventRecord"))
    ]
    planes = Plane("/device:GPU:0", (line(gpu.STREAM, *gpu.kernels(0, 3, OPS, lambda *_: True)),))
    threads = host(gpu.main_thread(3), gpu.thread(0, 3, OPS, *others))
    trace = opened(tmp_path, xspace(metadata(p7=gpu.program(OPS)), planes, threads))
    assert law(trace, "launches").expected == 15


@pytest.mark.parametrize(
    "around",
    [
        event("cuGraphCreate (CudaGraph:3)", 1_510, 2, correlation_id=90_000, device_id=0),
        event("command_buffer::update", 1_510, 60),
    ],
)
def test_a_launch_into_a_graph_that_is_recorded_brings_no_kernel(tmp_path, around):
    recorded = [
        event("k_gemm", 1_520 + 10 * n, 5, correlation_id=90_001 + n, device_id=0) for n in range(3)
    ]
    planes = Plane("/device:GPU:0", (line(gpu.STREAM, *gpu.kernels(0, 3, OPS, lambda *_: True)),))
    threads = host(gpu.main_thread(3), gpu.thread(0, 3, OPS, around, *recorded))
    trace = opened(tmp_path, xspace(metadata(p7=gpu.program(OPS)), planes, threads))
    assert (law(trace, "launches").verdict, law(trace, "launches").expected) == ("ok", 15)
    assert trace.steps["used"].all()


@pytest.mark.parametrize(
    "name", ["cuGraphExecUpdate_v2", "cuGraphDestroy", "hipGraphUpload", "cuGraphExecDestroy"]
)
def test_a_call_that_opens_no_graph_hides_no_loss(tmp_path, name):
    # the call lies before the fourth kernel of each step; steps 1 and 4 of 6 lack it and the fifth
    calls = [
        event(name, gpu.start_ns(0, s, 3) - 40, 5, correlation_id=90_000 + s) for s in range(6)
    ]
    work = gpu.kernels(0, 6, OPS, lambda device, step, place: step not in (1, 4) or place < 3)
    plane = Plane("/device:GPU:0", (line(gpu.STREAM, *work),))
    threads = host(gpu.main_thread(6), gpu.thread(0, 6, OPS, *calls))
    trace = opened(tmp_path, xspace(metadata(p7=gpu.program(OPS)), plane, threads))
    found = law(trace, "launches")
    assert (found.verdict, found.expected, found.found) == ("warn", 30, 26)
    assert trace.steps["used"].tolist() == [True, False, True, True, False, True]


@pytest.mark.parametrize("closes", ["cuStreamEndCapture", "cuGraphInstantiateWithFlags", ""])
def test_a_loss_behind_the_recording_of_a_graph_is_seen(tmp_path, closes):
    # step 1 of 4 records a graph after its first launch; its last two kernels are lost. Without the
    # end of the recording its other two, which have work, show that they are in no graph.
    at = gpu.start_ns(0, 1, 1)
    calls = [event("cuStreamBeginCapture_v2", at - 60, 2, correlation_id=90_000)]
    if closes:
        calls += [
            event("k_gate", at - 50, 2, correlation_id=90_001, device_id=0),
            event(closes, at - 40, 2, correlation_id=90_002),
        ]
    work = gpu.kernels(0, 4, OPS, lambda device, step, place: step != 1 or place < 3)
    plane = Plane("/device:GPU:0", (line(gpu.STREAM, *work),))
    threads = host(gpu.main_thread(4), gpu.thread(0, 4, OPS, *calls))
    trace = opened(tmp_path, xspace(metadata(p7=gpu.program(OPS)), plane, threads))
    found = law(trace, "launches")
    assert (found.verdict, found.expected, found.found) == ("warn", 20, 18)
    assert trace.steps["used"].tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    "name", ["cuLaunchHostFunc", "hipLaunchHostFunc_spt", "hipGraphAddMemcpyNode"]
)
def test_calls_named_like_launches_bring_no_work(tmp_path, name):
    trace = opened(tmp_path, with_call_in_each_step(name))
    assert (law(trace, "launches").verdict, law(trace, "launches").expected) == ("ok", 15)
    assert trace.steps["used"].all()


def test_copies_by_a_call_that_never_has_a_record_are_not_compared(tmp_path):
    trace = opened(tmp_path, with_call_in_each_step("hipMemcpyAsync"))
    found = law(trace, "launches")
    assert (found.verdict, found.expected) == ("ok", 15)
    assert "3 more call(s) not compared: copies by calls that never have a record" in found.detail
    assert trace.steps["used"].all()


@pytest.mark.parametrize("are_named", [True, False])
@pytest.mark.parametrize("places", [[(2, 4)], [(0, 1), (1, 1)]])
def test_a_device_that_ran_no_program_is_not_missed(tmp_path, are_named, places):
    # GPU 1 gets a memory set or two; executions tell their devices or not
    name = "[0] X LoadedExecutable::Execute (jit_step)"
    calls = [
        event("Memset", gpu.start_ns(0, *place) + 60, 5, correlation_id=90_000 + n, device_id=1)
        for n, place in enumerate(places)
    ]
    own = gpu.thread(0, 3, OPS, *calls)
    if not are_named:
        own = replace(own, events=tuple(e for e in own.events if e.name != name))
    trace = opened(
        tmp_path,
        xspace(
            metadata(p7=gpu.program(OPS)),
            Plane("/device:GPU:0", (line(gpu.STREAM, *gpu.kernels(0, 3, OPS, lambda *_: True)),)),
            Plane("/device:GPU:1"),
            host(gpu.main_thread(3), own),
        ),
    )
    assert (law(trace, "launches").verdict, law(trace, "devices").verdict) == ("ok", "ok")
    assert "launches on devices that ran no program" in law(trace, "launches").detail
    assert not any(law.withholds_any for law in trace.trust)


def with_call_in_each_step(name):
    """Three steps with every kernel, and a call between the third launch and the fourth."""
    calls = [
        event(name, gpu.start_ns(0, s, 2) + 30, 5, correlation_id=90_000 + s, device_id=0)
        for s in range(3)
    ]
    planes = Plane("/device:GPU:0", (line(gpu.STREAM, *gpu.kernels(0, 3, OPS, lambda *_: True)),))
    threads = host(gpu.main_thread(3), gpu.thread(0, 3, OPS, *calls))
    return xspace(metadata(p7=gpu.program(OPS)), planes, threads)


REPLAYS = 6


@pytest.mark.parametrize(
    ("nodes_of_the_fifth", "told"),
    [(0, "1 of GPU 0's 6 launches have no kernel"), (2, "1 replays of graphs on GPU 0")],
)
def test_a_replay_of_a_graph_is_missed_whole_or_in_part(tmp_path, nodes_of_the_fifth, told):
    """Each step replays one graph of three nodes."""
    names = ("norm", "gemm", "gate")
    nodes = [
        event(
            f"k_{names[node]}",
            gpu.start_ns(0, step, node) + 50,
            gpu.KERNEL,
            hlo_op=Ref(names[node]),
            program_id=7,
            correlation_id=gpu.number(0, step, 0),
            cuda_graph_id=9,
        )
        for step in range(REPLAYS)
        for node in range(3 if step != 4 else nodes_of_the_fifth)
    ]
    calls = [
        event(
            "cuGraphLaunch (CudaGraph:9)",
            gpu.start_ns(0, step, 0),
            20,
            correlation_id=gpu.number(0, step, 0),
            device_id=0,
        )
        for step in range(REPLAYS)
    ]
    plane = Plane("/device:GPU:0", (line(gpu.STREAM, *nodes),))
    threads = host(
        gpu.main_thread(REPLAYS),
        line(
            "py_xla_execute/0",
            *calls,
            *(
                event("[0] X LoadedExecutable::Execute (jit_step)", at, 200, _c=500 + step)
                for step in range(REPLAYS)
                if (at := gpu.start_ns(0, step, 0) - 5)
            ),
        ),
    )
    trace = opened(tmp_path, xspace(metadata(p7=gpu.program(names)), plane, threads))
    found = law(trace, "launches")
    assert found.verdict == "warn"
    assert told in found.detail
    used = trace.steps.set_index("step")["used"]
    assert used.drop(4).all()
    assert not used[4]
