"""Last kernels that are recorded as longer than they can have run; built as in `builders.gpu`."""

import pytest
from builders import gpu
from builders.xspace import Plane, Ref, event, line, metadata, xspace

from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.ingest import open_run
from moeprof.tables.law import Need

OPS = ("norm", "gemm", "act")
STEPS = 4


def opened(folder, *planes, opcode="fusion"):
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=gpu.program(OPS, opcode)), *planes))
    return open_run(file)


def work(last_ns, device=0, lengths=(80,) * (STEPS - 1), **names):
    """Four executions of three kernels, 80 ns each but for the last kernel, `lengths` before."""
    events = gpu.kernels(device, STEPS, OPS, lambda *_: True)
    of_last = [*lengths, last_ns]
    return [
        event(
            names.get("name", one.name),
            one.start_ns,
            of_last[n // 3] if n % 3 == 2 else one.duration_ns,
            **one.stats,
        )
        for n, one in enumerate(events)
    ]


def plane(events, device=0):
    return Plane(f"/device:GPU:{device}", (line(gpu.STREAM, *events),))


def law(trace, name="last_kernels"):
    return next(law for law in trace.trust if law.check == name)


def op_time(trace):
    return next(m.value for m in breakdown(trace).headline if m.metric == "op_time")


def test_a_last_kernel_of_many_times_its_like_is_named_and_its_step_not_used(tmp_path):
    trace = opened(tmp_path, plane(work(120_000)))
    found = law(trace)
    assert (found.verdict, found.expected, found.found, found.unit) == ("warn", 80, 120_000, "ns")
    told = "act on GPU 0: 120.0 µs against 80 ns in the other 3 executions of it (× 1,500)"
    assert told in found.detail
    assert "step 3 is not used" in found.detail
    assert trace.steps["used"].tolist() == [True, True, True, False]
    assert trace.steps["reason"].iloc[3] == f"its last kernel has no end: {told}"
    assert op_time(trace) == 240
    assert trace.events["duration_ns"].max() == 80
    assert trace.events["recorded_ns"].max() == 120_000
    assert law(trace, "durations").verdict == "ok"  # none is cut by the next of its stream


def test_on_each_of_several_devices(tmp_path):
    both = (plane(work(50_000)), plane(work(70_000, 1), 1), plane(work(80, 2), 2))
    trace = opened(tmp_path, *both)
    assert law(trace).found == 70_000
    assert "GPU 1" in law(trace).detail
    assert "and of 1 more stream(s)" in law(trace).detail
    assert op_time(trace) == 240


def test_a_kernel_without_op_goes_by_its_name(tmp_path):
    events = [
        event(one.name, one.start_ns, one.duration_ns, correlation_id=n)
        for n, one in enumerate(work(9_000))
    ]
    assert "k_act on GPU 0: 9.000 µs" in law(opened(tmp_path, plane(events))).detail


@pytest.mark.parametrize(
    ("last_ns", "lengths"),
    [
        (80, (80, 80, 80)),
        (390, (80, 80, 80)),  # less than five times the longest
        (2_000, (80, 500, 90)),  # an op that varies
    ],
)
def test_a_last_kernel_as_long_as_its_like_may_be_is_left(tmp_path, last_ns, lengths):
    trace = opened(tmp_path, plane(work(last_ns, lengths=lengths)))
    assert law(trace).verdict == "ok"
    assert not trace.steps["reason"].str.contains("end").any()


def test_a_copy_of_any_size_has_one_name(tmp_path):
    copies = [
        event("MemcpyD2H", at, length, correlation_id=900 + at)
        for at, length in ((2_000, 10), (12_000, 12), (22_000, 11), (32_000, 90_000))
    ]
    trace = opened(tmp_path, plane([*work(80), *copies]))
    assert law(trace).verdict == "ok"


def test_work_that_goes_on_elsewhere_bounds_a_stream(tmp_path):
    side = [
        event("k_side", at, length, hlo_op=Ref("norm"), program_id=7, correlation_id=900 + at)
        for at, length in ((1_060, 10), (11_060, 11), (21_060, 10), (31_060, 200))
    ]
    gpus = Plane("/device:GPU:0", (line(gpu.STREAM, *work(80)), line("Stream #8", *side)))
    assert law(opened(tmp_path, gpus)).verdict == "ok"


@pytest.mark.parametrize(("last_ns", "verdict"), [(20_000, "ok"), (90_000, "warn")])
def test_a_collective_may_wait_but_not_longer_than_all_before_it(tmp_path, last_ns, verdict):
    trace = opened(tmp_path, plane(work(last_ns)), opcode="all-reduce")
    assert law(trace).verdict == verdict
    assert trace.events["duration_ns"].max() == last_ns  # as recorded: it may have waited


def test_more_work_on_a_stream_than_time_passed_fails(tmp_path):
    # two processes folded into one: a kernel of 160 ns every 100 on one stream
    folded = [
        event("k_norm", 1_000 + 100 * n, 160, hlo_op=Ref("norm"), program_id=7, correlation_id=n)
        for n in range(40)
    ]
    found = law(opened(tmp_path, plane(folded)), "stream_time")
    assert found.verdict == "fail"
    assert (found.expected, found.found) == (39 * 100 + 160, 40 * 160)
    assert found.breaks == (Need.DEVICE_TIMES,)


def test_nodes_of_a_graph_may_run_at_once_on_one_stream(tmp_path):
    nodes = [
        event("k_norm", 1_000 + 100 * n, 160, hlo_op=Ref("norm"), program_id=7, correlation_id=3)
        for n in range(40)
    ]
    assert law(opened(tmp_path, plane(nodes)), "stream_time").verdict == "ok"
