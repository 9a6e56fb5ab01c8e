"""Executions of a device plane alone, without the host's launches."""

import dataclasses

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, host, line, metadata, xspace

from moeprof.ingest import open_run

ORDER = ("norm", "gemm", "loop", "add")
COMPUTATIONS = (
    computation("body", op("mul", "multiply", "f32[8]")),
    computation(
        "main",
        op("norm", "fusion", "f32[8]"),
        op("gemm", "custom-call", "f32[8]"),
        op("loop", "while", "f32[8]", called=("body",)),
        op("add", "fusion", "f32[8]"),
    ),
)
SCHEDULED = hlo_proto(*COMPUTATIONS, schedule={"main": ORDER, "body": ("mul",)})
UNSCHEDULED = hlo_proto(*COMPUTATIONS)
WHOLE = ("norm", "gemm", "gemm", "mul", "mul", "add")  # a GEMM of two kernels, a loop of two trips


def opened(folder, *devices, program=SCHEDULED, lines=()):
    planes = [
        Plane(
            f"/device:GPU:{device}",
            (
                line(
                    "Stream #1",
                    *(
                        event(f"k_{name}", 100 * i + 1, 50, hlo_op=name, program_id=7)
                        for i, name in enumerate(ops)
                    ),
                ),
                *lines,
            ),
        )
        for device, ops in enumerate(devices)
    ]
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=program), *planes))
    return open_run(file)


def test_an_instruction_that_comes_once_begins_an_execution_when_it_comes_again(tmp_path):
    trace = opened(tmp_path, WHOLE * 4)
    assert trace.steps["start_ns"].tolist() == [1, 601, 1201, 1801]
    assert trace.steps["duration_ns"].tolist() == [550] * 4
    assert trace.steps["used"].all()
    assert any("4 execution(s) of jit_step are told apart" in note for note in trace.meta.notes)


def test_executions_that_the_capture_cut_are_dropped(tmp_path):
    trace = opened(tmp_path, (*WHOLE[3:], *WHOLE * 3, *WHOLE[:2]))
    assert trace.steps["used"].tolist() == [False, True, True, True, False]
    assert trace.steps["start_ns"].tolist() == [1, 301, 901, 1501, 2101]


def test_without_a_schedule_only_whole_repetitions_are_believed(tmp_path):
    assert len(opened(tmp_path, WHOLE * 3, program=UNSCHEDULED).steps) == 3
    cut = opened(tmp_path, (*WHOLE[3:], *WHOLE * 2), program=UNSCHEDULED)
    assert cut.steps.empty


@pytest.mark.parametrize(
    "devices",
    [
        (("gemm",) * 6,),  # six executions, or one of six kernels
        ((*WHOLE, "norm", "add", *WHOLE),),  # one in the middle lacks the GEMM
        (WHOLE * 3, WHOLE * 2),  # devices that count differently
    ],
)
def test_what_could_be_read_in_two_ways_gives_no_step(tmp_path, devices):
    assert opened(tmp_path, *devices).steps.empty


def test_ids_that_the_runtime_drew_below_zero_are_kept_beside_an_unknown_one(tmp_path):
    runs = (-17, -90, -55)
    calls = [
        event(
            "[0] PjRtStreamExecutorLoadedExecutable::ExecuteHelper",
            *(600 * i + 1, 500),
            **{"_c": run, "run_id": run, "global_device_id": 0},
        )
        for i, run in enumerate(runs)
    ]
    launches = [
        event("cuLaunchKernel", 600 * i + 10 * k + 2, 5, correlation_id=10 * i + k)
        for i in range(len(runs))
        for k in range(len(WHOLE))
    ]
    kernels = [
        event(f"k_{name}", 600 * i + 100 * k + 1, 50)
        for i in range(len(runs))
        for k, name in enumerate(WHOLE)
    ]
    told = [
        dataclasses.replace(
            kernel,
            stats={
                "hlo_op": kernel.name.removeprefix("k_"),
                "program_id": 7,
                "correlation_id": 10 * (n // len(WHOLE)) + n % len(WHOLE),
            },
        )
        for n, kernel in enumerate(kernels)
    ]
    told[8] = dataclasses.replace(told[8], stats={**told[8].stats, "correlation_id": 99})
    gpu = Plane("/device:GPU:0", (line("Stream #1", *told),))
    file = tmp_path / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=SCHEDULED), host(line("python", *calls, *launches)), gpu))
    trace = open_run(file)
    assert set(trace.events["run_id"]) == {-17, -90, -55, -1}
    assert trace.executions["run_id"].tolist() == [-17, -90, -55]
    assert not any("told apart" in note for note in trace.meta.notes)


def test_a_line_of_executions_counts_before_recurrence(tmp_path):
    modules = line("XLA Modules", event("jit_step(7)", 0, 1195), event("jit_step(7)", 1195, 1300))
    trace = opened(tmp_path, WHOLE * 4, lines=(modules,))
    assert len(trace.steps) == 2
    assert not any("told apart" in note for note in trace.meta.notes)
