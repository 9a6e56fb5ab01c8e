"""Device work before its own launch: a shift where a constant mends it, else no latency."""

import json

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.analyzers import analyze, without_withheld
from moeprof.analyzers.questions.launch import launch
from moeprof.ingest import open_run
from moeprof.reports.perfetto.layout import layout
from moeprof.reports.run.document import build

PROGRAM = hlo_proto(computation("main", op("fusion.4", "add", "f32[8]")))
STEPS, KERNELS = 4, 3


def opened(tmp_path, *offsets_ns, gpus=1, apart_ns=0, every_ns=30_000, annotated=()):
    """Kernels of 20 us, launched 30 us apart; those of step n begin 6 us + its offset behind.

    Each GPU's clock is by ``apart_ns`` ahead of the one before.

    A step begins every 1,000 us, as the host waits for the one before.
    """
    calls, planes = [], []
    for gpu in range(gpus):
        kernels = []
        for step in range(STEPS):
            start = 1_000_000 * (step + 1)
            for place in range(KERNELS):
                number = 100 * gpu + 10 * step + place
                at = start + every_ns * place
                calls.append(event("cuLaunchKernel", at, 4_000, correlation_id=number))
                kernels.append(
                    event(
                        *("loop_fusion", at + 6_000 + offsets_ns[step] + apart_ns * gpu, 20_000),
                        **{"hlo_op": Ref("fusion.4"), "program_id": 7, "correlation_id": number},
                    )
                )
        planes.append(Plane(f"/device:GPU:{gpu}", (line("Stream #7(Compute)", *kernels),)))
    executes = [
        event("X LoadedExecutable::Execute", 1_000_000 * n - 1000, 200_000, run_id=n)
        for n in range(1, STEPS + 1)
    ]
    file = tmp_path / "node.xplane.pb"
    main = host(line("python", *executes, *annotated, *calls))
    file.write_bytes(xspace(metadata(p7=PROGRAM), *planes, main))
    return open_run(file)


def law(trace):
    return next(own for own in trace.trust if own.check == "causality")


def test_work_behind_its_launch_is_good(tmp_path):
    found = law(opened(tmp_path, 0, 0, 0, 0))
    assert (found.verdict, found.found, found.unit) == ("ok", 6_000, "ns")


def test_a_constant_is_taken_off(tmp_path):
    """The devices' clock is 250 us behind: work begins 244 us before its launch, shifted to 0."""
    trace = opened(tmp_path, *[-250_000] * STEPS, gpus=2)
    found = law(trace)
    assert (found.verdict, found.found) == ("warn", -244_000)
    assert "244.0" in found.detail
    assert trace.events["start_ns"].min() == 1_000_000
    assert trace.steps["duration_ns"].tolist() == [80_000] * STEPS  # 2 × 30 + 20 us: as recorded


def withheld_of(trace, name):
    told = build(trace, analyze(trace, [name]))["analyses"][name]["headline"]
    return {metric["metric"] for metric in told if metric.get("withheld") == "causality"}


def test_after_a_shift_no_latency_is_told_as_the_clocks_may_be_further_apart(tmp_path):
    """The host is a step ahead: 900 us from launch to work, by a clock that is 1 ms behind."""
    trace = opened(tmp_path, *[-100_000 - 6_000] * STEPS)
    assert law(trace).found == -100_000  # of 1 ms: the stamps tell no more
    assert withheld_of(trace, "launch") == {
        *("launch_latency_median", "launch_latency_p90"),
        *("queue_depth_median", "empty_queue_share"),
    }
    assert withheld_of(trace, "sync_gaps") == {"host_late_time"}


def test_devices_that_are_constant_by_themselves_are_shifted_by_their_own(tmp_path):
    """GPU 0 is 250 us behind, GPU 1 200 us: work begins 244 and 194 us before its launch."""
    trace = opened(tmp_path, *[-250_000] * STEPS, gpus=2, apart_ns=50_000)
    assert "194.0 µs to 244.0 µs" in law(trace).detail
    first = trace.events.groupby("device")["start_ns"].min()
    assert first.tolist() == [1_000_000, 1_000_000]
    assert trace.steps["duration_ns"].tolist() == [80_000] * STEPS


def test_a_device_whose_clock_is_sound_stays_where_it_is(tmp_path):
    """GPU 0 is 25 us behind, which is 19 us before its launches, GPU 1 is sound."""
    trace = opened(tmp_path, *[-25_000] * STEPS, gpus=2, apart_ns=25_000)
    first = trace.events.groupby("device")["start_ns"].min()
    assert first.tolist() == [1_000_000, 1_006_000]


@pytest.mark.parametrize(
    "offsets", [(0, -40_000, -80_000, -120_000), [-150_000] * STEPS], ids=["drift", "constant"]
)
def test_clocks_that_are_apart_give_no_cause_anywhere(tmp_path, offsets):
    """Kernels every 90 us leave gaps of 70 us, steps one of some 800 us between them."""
    said = [event("next_batch", 1_000_000 * n - 400_000, 390_000) for n in range(2, STEPS + 1)]
    trace = opened(tmp_path, *offsets, every_ns=90_000, annotated=said)
    assert trace.meta.clocks_apart == trace.meta.hosts
    document = build(trace, analyze(trace, is_drawn=True))
    told = json.dumps([document["analyses"], document["drawings"]])
    assert "host launch late" not in told
    assert "next_batch" not in told
    found = document["analyses"]
    assert {row["cause"] for row in found["sync_gaps"]["rows"]} == {"unknown"}
    figures = {own["metric"]: own["value"] for own in found["step_time"]["headline"]}
    assert figures["between_idle_cause"] == "unknown"
    (hint,) = (row for row in found["hints"]["rows"] if row["hint"] == "idle_between_steps")
    assert "its cause is not known" in hint["evidence"]
    slices = [look.name for part in layout(trace).slices for look in part.looks]
    assert "unknown" in slices
    assert "host launch late" not in slices


def test_sound_clocks_give_the_cause(tmp_path):
    trace = opened(tmp_path, *[0] * STEPS, every_ns=90_000)
    assert trace.meta.clocks_apart == ()
    rows = build(trace, analyze(trace, ["sync_gaps"]))["analyses"]["sync_gaps"]["rows"]
    assert {row["cause"] for row in rows} == {"host launch late"}


@pytest.mark.parametrize("offsets", [(0, -40_000, -80_000, -120_000), (-90_000, 0, 0, -90_000)])
def test_a_drift_is_no_constant_and_no_latency_is_told(tmp_path, offsets):
    trace = opened(tmp_path, *offsets)
    found = law(trace)
    assert found.verdict == "warn"
    assert {scope.question for scope in found.scopes} == {"launch", "sync_gaps"}
    assert trace.events["start_ns"].min() == 1_006_000 + offsets[0]  # stamps stay
    document = build(trace, without_withheld({"launch": launch(trace)}, trace.trust))
    told = document["analyses"]["launch"]["headline"]
    withheld = {metric["metric"] for metric in told if metric.get("withheld") == "causality"}
    assert withheld == {
        *("launch_latency_median", "launch_latency_p90"),
        *("queue_depth_median", "empty_queue_share"),
    }


def test_a_single_launch_with_odd_stamps_moves_nothing(tmp_path):
    file = tmp_path / "node.xplane.pb"
    calls = [event("cuLaunchKernel", 10_000 * n, 2_000, correlation_id=n) for n in range(1, 31)]
    kernels = [
        event("k", 10_000 * n + (5_000 if n != 4 else -8_000), 900, correlation_id=n)
        for n in range(1, 31)
    ]
    gpu = Plane("/device:GPU:0", (line("Stream #1", *kernels),))
    file.write_bytes(xspace(gpu, host(line("python", *calls))))
    trace = open_run(file)
    found = law(trace)
    assert (found.verdict, found.scopes) == ("warn", ())
    assert found.detail.startswith("1 of 30 launches have stamps that cannot be")
    assert trace.events["start_ns"].min() == 15_000


def test_without_launches_it_is_unchecked(tmp_path):
    file = tmp_path / "node.xplane.pb"
    kernels = [event("k", 10_000 * n, 900) for n in range(1, 4)]
    file.write_bytes(xspace(Plane("/device:GPU:0", (line("Stream #1", *kernels),)), host()))
    assert law(open_run(file)).verdict == "unchecked"
