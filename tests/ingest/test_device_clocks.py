"""One clock for all devices of a host, by the ends of collectives that they leave together."""

import numpy as np
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.analyzers.questions.launch import launch
from moeprof.analyzers.questions.step_time import step_time
from moeprof.ingest import open_run
from moeprof.tables.law import Need


def program(opcode):
    return hlo_proto(
        computation(
            "main",
            op("p", "parameter", "f32[64]"),
            op("grads", "fusion", "f32[64]", "p"),
            op("sum", opcode, "f32[64]", "grads"),
            op("apply", "fusion", "f32[64]", "sum"),
        )
    )


US = 1000
STEPS, STEP_US = 5, 2000
GRADS_US = (700, 300, 700, 700)  # GPU 1 waits 400 us for the others
SUM_US, APPLY_US = 60, 100
STEP_NS = (700 + SUM_US + APPLY_US) * US


def opened(folder, ahead_us, *, opcode="all-reduce", leaves_us=lambda gpu, step: 0, lead_us=8):
    """Steps of 860 us: grads, a sum that all leave together, apply.

    `ahead_us` gives, per GPU, how far its stamps are ahead: a number, or one per step; `leaves_us`
    how much later than the others a GPU leaves the sum; work begins `lead_us` behind its launch.
    """
    planes, calls = [], []
    for gpu, own in enumerate(ahead_us):
        kernels = []
        for step in range(STEPS):
            ahead = own[step] if isinstance(own, (tuple, list)) else own
            at = 10_000_000 + step * STEP_US * US
            spans = {
                "grads": (0, GRADS_US[gpu]),
                "sum": (GRADS_US[gpu], 700 + SUM_US + leaves_us(gpu, step)),
                "apply": (700 + SUM_US + leaves_us(gpu, step), 700 + SUM_US + APPLY_US),
            }
            for place, (name, (begin, end)) in enumerate(spans.items()):
                number = 1000 * gpu + 10 * step + place + 1
                stats = {"hlo_op": Ref(name), "program_id": 7, "correlation_id": number}
                begun = at + (begin + ahead + lead_us) * US
                kernels.append(event(f"{name}_kernel", begun, (end - begin) * US, **stats))
                call = event("cuLaunchKernel", at + place * US, 500, correlation_id=number)
                calls.append(call)
        planes.append(Plane(f"/device:GPU:{gpu}", (line("Stream #7(Compute)", *kernels),)))
    executes = [
        event("X LoadedExecutable::Execute", 9_999_000 + n * STEP_US * US, 50_000, run_id=n + 1)
        for n in range(STEPS)
    ]
    folder.mkdir(exist_ok=True)
    file = folder / "node.xplane.pb"
    main = host(line("python", *executes, *calls))
    file.write_bytes(xspace(metadata(p7=program(opcode)), *planes, main))
    return open_run(file)


def law(trace):
    return next(own for own in trace.trust if own.check == "device_clocks")


def metric(result, name):
    return next(own.value for own in result.headline if own.metric == name)


def test_one_clock_is_good(tmp_path):
    trace = opened(tmp_path, (0, 0))
    assert law(trace).verdict == "ok"
    assert metric(step_time(trace), "step_time_median") == STEP_NS


@pytest.mark.parametrize(
    "ahead_us",
    [(0, 4000), (4000, 0), (0, 250), (0, 3_600_000_000), (0, 0, 0, 1500)],
)
def test_a_device_on_another_clock_is_laid_on_that_of_the_others(tmp_path, ahead_us):
    """The right clock is that of most, else the one on which work begins soonest."""
    good = opened(tmp_path / "good", (0,) * len(ahead_us))
    trace = opened(tmp_path / "apart", ahead_us)
    found = law(trace)
    wrong = next(ahead for ahead in ahead_us if ahead)
    assert (found.verdict, found.found, found.breaks) == ("warn", abs(wrong) * US, ())
    assert not found.scopes
    assert metric(step_time(trace), "step_time_median") == STEP_NS
    starts = [own.events["start_ns"].to_numpy() for own in (good, trace)]
    assert np.array_equal(*starts)
    latency = [metric(launch(own), "launch_latency_median") for own in (good, trace)]
    assert latency[0] == latency[1]


def test_a_device_whose_work_begins_before_its_launches_is_shifted_by_these(tmp_path):
    trace = opened(tmp_path, (0, -4000))
    causality = next(found for found in trace.trust if found.check == "causality")
    assert causality.verdict == "warn"
    assert "launch_latency_median" in {f for scope in causality.scopes for f in scope.figures}
    assert metric(step_time(trace), "step_time_median") == pytest.approx(STEP_NS, rel=0.01)


def test_a_clock_that_jumps_is_mended_by_no_constant(tmp_path):
    """Ahead by 0, 5, 2, 7 and 3 ms: the sum would end before it began elsewhere."""
    found = law(opened(tmp_path, (0, (0, 5000, 2000, 7000, 3000))))
    assert found.verdict == "warn"
    assert found.breaks == (Need.DEVICE_CLOCKS,)
    assert "collectives" in {scope.question for scope in found.scopes}


def test_kernels_whose_ranks_leave_one_by_one_shift_nothing(tmp_path):
    """GPU 1 leaves 40 us later in some steps, earlier in others: possible on one clock."""
    trace = opened(tmp_path, (0, 0), leaves_us=lambda gpu, step: 40 * gpu * (-1) ** step)
    assert law(trace).verdict == "ok"


def test_a_permute_says_nothing_of_clocks(tmp_path):
    trace = opened(tmp_path, (0, 0), opcode="collective-permute")
    assert law(trace).verdict == "unchecked"


def test_all_devices_an_hour_late_are_compared_among_themselves_alone(tmp_path):
    """Launches span 8 ms: no queue holds back all work by an hour."""
    trace = opened(tmp_path, (0, 0), lead_us=3_600_000_000)
    found = law(trace)
    assert (found.verdict, found.breaks) == ("warn", ())
    assert {scope.question for scope in found.scopes} == {"launch", "sync_gaps"}
    assert metric(step_time(trace), "step_time_median") == STEP_NS


def test_one_device_has_one_clock(tmp_path):
    assert law(opened(tmp_path, (0,))).verdict == "unchecked"
