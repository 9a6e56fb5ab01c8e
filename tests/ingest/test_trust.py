"""What the trust record says, and which figures it withholds, of profiles with one fault each."""

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.protobuf import message
from builders.xspace import Plane, event, host, line, metadata, thunk, xspace

from moeprof.analyzers import analyze
from moeprof.analyzers.registry import all_names
from moeprof.ingest import open_run
from moeprof.tables.law import Need

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))


def opened(folder, data, name="node0"):
    file = folder / f"{name}.xplane.pb"
    file.write_bytes(data)
    return open_run(file)


def gpu(*events, name="Stream #1(Compute)"):
    return Plane("/device:GPU:0", (line(name, *events),))


def check(trace, name):
    return next(c for c in trace.trust if c.check == name)


def cpu(*extra):
    work = [thunk("add", 1000 * i + 10, 100, run_id=i) for i in range(4)]
    return xspace(metadata(p7=PROGRAM), host(line("pool", *work)), *extra)


def test_the_record_lists_every_check_of_a_good_profile(tmp_path):
    trace = opened(tmp_path, cpu())
    assert {c.verdict for c in trace.trust} <= {"ok", "unchecked"}
    assert [c.check for c in trace.trust] == [
        "truncated",
        "device_work",
        "programs",
        "resolved",
        "durations",
        "time_stamps",
        "recorded_once",
        "steps",
        "step_order",
        "strays",
        "dropped",
        "processes",
        "ranks",
        "one_run",
        "run_record",
        "routing_record",
        "clocks",
        "device_clocks",
        "profiler",
        "program_ids",
        "step_ways",
        "causality",
        "launches",
        "devices",
        "last_kernels",
        "stream_time",
        "host_launches",
        "pieces",
    ]
    assert all(c.breaks == () for c in trace.trust)


def test_no_device_work_names_the_likely_causes_and_withholds_every_time(tmp_path):
    trace = opened(tmp_path, xspace(metadata(p7=PROGRAM), host(line("python"))))
    found = check(trace, "device_work")
    assert found.verdict == "fail"
    for cause in ("permission", "NVreg_RestrictProfilingToAdminUsers=0", "CUPTI user", "nsys"):
        assert cause in found.detail
    for cause in ("rocprofiler", "CPU backend", "window was too short"):
        assert cause in found.detail
    findings = analyze(trace)
    for name in ("step_time", "breakdown", "timeline", "collectives", "receive_buffers"):
        assert findings[name].table.empty
        assert all(metric.value is None for metric in findings[name].headline)
        assert findings[name].notes == (f"withheld: device_work: {found.detail}",)
        assert findings[name].question


def test_the_causes_are_those_of_the_vendor(tmp_path):
    amd = Plane("/device:GPU:0", stats={"device_type_string": "AMD Instinct MI300X"})
    detail = check(opened(tmp_path, xspace(amd)), "device_work").detail
    assert "rocprofiler" in detail
    assert "CUPTI" not in detail


def test_work_of_no_program_withholds_what_needs_one(tmp_path):
    trace = opened(tmp_path, xspace(gpu(event("k", 10, 50))))
    assert check(trace, "programs").breaks == (Need.PROGRAMS,)
    findings = analyze(trace)
    assert findings["receive_buffers"].table.empty
    assert findings["receive_buffers"].notes[0].startswith("withheld: programs: no compiled")
    assert len(findings["timeline"].table)


def test_kernels_of_one_launch_without_an_op_stay_in_an_honest_bucket(tmp_path):
    # one graph launch, 40 kernels with its correlation id, of which 2 name their op
    named = {"hlo_op": "add", "program_id": 7}
    kernels = [
        event(f"k{i}", 100 * i + 1, 50, correlation_id=77, **(named if i < 2 else {}))
        for i in range(40)
    ]
    trace = opened(tmp_path, xspace(metadata(p7=PROGRAM), gpu(*kernels)))
    assert len(trace.events) == 40
    assert (trace.events["op"] == "add").sum() == 2
    found = check(trace, "resolved")
    assert found.verdict == "warn"
    assert found.detail.startswith("2 of 40 device events, 5.0 % of device time")
    assert "38 events (95.0 %) inside command buffers are not attributed" in found.detail
    assert "--xla_gpu_enable_command_buffer=" in found.detail


@pytest.mark.parametrize(
    ("warning", "verdict"),
    [
        ("GPU profiler: 3 activity events dropped because the buffer is full", "warn"),
        ("GPU profiler: 900 activity events dropped because the buffer is full", "fail"),
        ("activity records were lost", "fail"),
    ],
)
def test_dropped_kernels_withhold_times_unless_they_are_few(tmp_path, warning, verdict):
    kernels = [event("k", 100 * i + 1, 50) for i in range(400)]
    data = xspace(metadata(p7=PROGRAM), gpu(*kernels)) + message((3, warning))
    found = check(opened(tmp_path, data), "dropped")
    assert found.verdict == verdict
    assert warning in found.detail
    assert found.breaks == ((Need.DEVICE_TIMES,) if verdict == "fail" else ())


def test_what_else_the_profiler_reports_is_a_warning(tmp_path):
    trace = opened(tmp_path, cpu() + message((2, "something went wrong")))
    assert check(trace, "profiler").detail == "the profiler reported: something went wrong"
    assert check(trace, "dropped").verdict == "ok"


def test_a_cut_file_gives_what_is_whole_and_says_so(tmp_path):
    late = host(*(line(f"noise{k}", *(event("x", 10, 1) for _ in range(200))) for k in range(9)))
    work = [event("add", 1000 * i + 10, 100, hlo_op="add", program_id=7) for i in range(4)]
    data = xspace(metadata(p7=PROGRAM), gpu(*work), late)
    trace = opened(tmp_path, data[: int(0.7 * len(data))])
    found = check(trace, "truncated")
    assert found.verdict == "warn"
    assert found.detail.startswith("recovered ")
    assert "the rest is unreadable" in found.detail
    assert len(trace.events) == 4


def test_no_device_work_of_a_cut_file_is_laid_to_the_cut(tmp_path):
    data = cpu()
    found = check(opened(tmp_path, data[: int(0.7 * len(data))]), "device_work")
    assert "(1) the file is cut" in found.detail
    assert Need.PROGRAMS in found.breaks  # they may be in the lost part
    assert "permission" not in found.detail


def test_one_annotation_gives_way_to_the_executions_of_the_largest_module(tmp_path):
    steps = [
        event("k", 1000 * i + 1, 500, program_id=7, hlo_op="add", correlation_id=i)
        for i in range(10)
    ]
    evals = [event("e", 1000 * i + 600, 50, program_id=8, hlo_op="add") for i in range(6)]
    spans = [event("jit_train_step", 1000 * i, 590) for i in range(10)]
    spans += [event("jit_eval", 1000 * i + 595, 100) for i in range(6)]
    device = Plane(
        "/device:GPU:0", (line("Stream #1", *steps, *evals), line("XLA Modules", *spans))
    )
    python = host(line("python", event("train", 1, 12_000, step_num=0, _r=1)))
    trace = opened(tmp_path, xspace(metadata(p7=PROGRAM, p8=PROGRAM), device, python))
    assert trace.steps["used"].tolist() == [True] * 10
    assert any("(annotations found: 1, not used)" in note for note in trace.meta.notes)


def test_a_single_file_of_compute_kernels_has_every_section(tmp_path):
    kernels = [event("loop_add_fusion", 100 * i + 1, 50, correlation_id=i) for i in range(40)]
    findings = analyze(opened(tmp_path, xspace(gpu(*kernels)), "foo"))
    assert set(findings) == set(all_names())
    said = " ".join(note for finding in findings.values() for note in finding.notes)
    assert "none in this trace" in said


def test_kernels_on_any_stream_count_and_nccl_is_communication(tmp_path):
    work = [event("loop_fusion_3", 100 * i + 1, 50) for i in range(200)]
    work += [event("ncclDevKernel_AllGather_RING_LL", 30_000 + 100 * i, 60) for i in range(20)]
    stream = gpu(*work, name="Stream #118(MemcpyD2H,MemcpyD2D,Compute,Memset)")
    trace = opened(tmp_path, xspace(stream))
    findings = analyze(trace)
    assert not findings["ops"].table.empty
    names = trace.events["name"].astype("str")
    assert names.str.startswith("nccl").sum() == 20
    row = findings["timeline"].table.iloc[0]
    assert row["exposed_communication_ns"] == 20 * 60


def test_of_instructions_that_share_a_name_the_first_counts_and_the_damage_is_told(tmp_path):
    twice = hlo_proto(
        computation(
            "main",
            op("add", "add", "f32[8]"),
            op("mul", "multiply", "f32[8]", "add"),
            op("add", "multiply", "f32[4]"),
        ),
        schedule={"main": ("add", "mul")},
    )
    of_graph = {"hlo_op": "command_buffer_1", "program_id": 7, "correlation_id": 77}
    kernels = [
        event("add", 100, 50, **of_graph),
        event("mul", 200, 50, **of_graph),
        event("mul", 300, 50, hlo_op="mul", program_id=7),
    ]
    trace = opened(tmp_path, xspace(metadata(p7=twice), gpu(*kernels)))
    assert trace.hlo_ops[["op", "shape"]].to_numpy().tolist() == [
        ["add", "f32[8]"],
        ["mul", "f32[8]"],
    ]
    assert trace.events["instruction"].tolist() == [0, 1, 1]
    assert analyze(trace, ["ops"])["ops"].table["calls"].sum() == 3
    found = check(trace, "truncated")
    assert found.verdict == "warn"
    assert "1 instruction(s) left out, of a name that it has before" in found.detail


@pytest.mark.parametrize(("of_missing_ns", "verdict"), [(900, "warn"), (40, "ok")])
def test_a_program_that_did_much_of_the_work_and_is_missing_is_told(
    tmp_path, of_missing_ns, verdict
):
    work = [
        thunk("add", 5000, 1000 - of_missing_ns),
        thunk("lost", 7000, of_missing_ns, program_id=9, run_id=2),
    ]
    trace = opened(tmp_path, xspace(metadata(p7=PROGRAM), host(line("pool", *work))))
    found = check(trace, "programs")
    assert found.verdict == verdict
    assert ("90.0 % of device time" in found.detail) == (verdict == "warn")
