"""Device work before its own launch: a shift where a constant mends it, else no latency."""

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.analyzers.launch import launch
from moeprof.analyzers.withhold import without_withheld
from moeprof.ingest import open_run
from moeprof.reports.document import build

PROGRAM = hlo_proto(computation("main", op("fusion.4", "add", "f32[8]")))
STEPS, KERNELS = 4, 3


def opened(tmp_path, *offsets_ns, gpus=1):
    """Kernels of 20 us, launched 30 us apart; those of step n begin 6 us + its offset behind.

    A step begins every 1,000 us, as the host waits for the one before.
    """
    calls, planes = [], []
    for gpu in range(gpus):
        kernels = []
        for step in range(STEPS):
            start = 1_000_000 * (step + 1)
            for place in range(KERNELS):
                number = 100 * gpu + 10 * step + place
                at = start + 30_000 * place
                calls.append(event("cuLaunchKernel", at, 4_000, correlation_id=number))
                kernels.append(
                    event(
                        *("loop_fusion", at + 6_000 + offsets_ns[step], 20_000),
                        **{"hlo_op": Ref("fusion.4"), "program_id": 7, "correlation_id": number},
                    )
                )
        planes.append(Plane(f"/device:GPU:{gpu}", (line("Stream #7(Compute)", *kernels),)))
    executes = [
        event("X LoadedExecutable::Execute", 1_000_000 * n - 1000, 200_000, run_id=n)
        for n in range(1, STEPS + 1)
    ]
    file = tmp_path / "node.xplane.pb"
    main = host(line("python", *executes, *calls))
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
    assert (found.verdict, found.found, found.scopes) == ("warn", -244_000, ())
    assert "244.0" in found.detail
    assert trace.events["start_ns"].min() == 1_000_000
    assert trace.steps["duration_ns"].tolist() == [80_000] * STEPS  # 2 × 30 + 20 us: as recorded
    metrics = {metric.metric: metric.value for metric in launch(trace).headline}
    assert metrics["launch_latency_median"] == 0


@pytest.mark.parametrize("offsets", [(0, -40_000, -80_000, -120_000), (-90_000, 0, 0, -90_000)])
def test_a_drift_is_no_constant_and_no_latency_is_told(tmp_path, offsets):
    trace = opened(tmp_path, *offsets)
    found = law(trace)
    assert found.verdict == "warn"
    assert {scope.question for scope in found.scopes} == {"launch", "sync_gaps"}
    assert trace.events["start_ns"].min() == 1_006_000 + offsets[0]  # stamps stay
    document = build(trace, without_withheld({"launch": launch(trace)}, trace.trust, {}))
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
