"""What the tables of a run hold: device work, steps, executions, launches and markers."""

import json
from pathlib import Path

import pytest
from builders.cpu_run import PROGRAM, cpu_file, step, verdicts, write
from builders.xspace import Plane, Ref, event, host, line, metadata, thunk, xspace

from moeprof.analyzers.questions.step_time import step_time
from moeprof.ingest import open_run


def test_device_work_of_a_cpu_run_is_told_apart_by_its_ordinal(tmp_path):
    trace = open_run(write(tmp_path, cpu_file()))
    assert (trace.meta.platform, trace.meta.devices, trace.meta.jax_version) == ("cpu", 2, "0.10.2")
    assert trace.events.groupby("device").size().to_dict() == {0: 9, 1: 9}
    assert set(trace.events["module"]) == {7}
    assert trace.meta.events == 18


def test_a_loop_gives_up_the_time_of_its_body(tmp_path):
    events = open_run(write(tmp_path, cpu_file())).events
    assert events.groupby("op")["self_ns"].max().to_dict() == {"while": 40, "add": 60, "a2a": 50}


def test_steps_run_from_first_start_to_last_end_over_the_devices(tmp_path):
    steps = open_run(write(tmp_path, cpu_file())).steps
    assert steps["duration_ns"].tolist() == [160, 160, 160]  # 10 to 170: device 1 starts 10 later
    assert steps["used"].all()


def test_executions_have_the_busy_time_of_a_device(tmp_path):
    executions = open_run(write(tmp_path, cpu_file())).executions
    assert executions["busy_ns"].tolist() == [150] * 6
    assert executions["step"].tolist() == [0, 1, 2, 0, 1, 2]


def test_all_good_input_passes_every_check(tmp_path):
    trace = open_run(write(tmp_path, cpu_file()))
    assert set(verdicts(trace).values()) <= {"ok", "unchecked"}
    assert "18 of 18 device events, 100.0 % of device time" in trace.trust[3].detail


def test_noise_is_counted_and_left_out(tmp_path):
    noise = line(
        "noise",
        event("ThreadpoolListener::Record", 5, 1),
        event("ThunkExecutor::Execute", 5, 900),
        event("$train.py:3 f", 5, 9),
        event("ParseArguments", 5, 9),
    )
    trace = open_run(write(tmp_path, cpu_file(noise)))
    assert dict(zip(trace.dropped["what"], trace.dropped["count"], strict=True)) == {
        "thread pool bookkeeping": 2,
        "Python calls": 1,
        "other host events": 1,
    }
    assert len(trace.events) == 18


def test_an_op_lasts_until_its_end_event_and_that_is_no_work(tmp_path):
    pool = line(
        "pool",
        thunk("a2a", 10, 5, _pt=0, _p=77),
        event("end: a2a", 40, 1, _ct=0, _c=77),
        thunk("add", 60, 5, _pt=0, _p=78),
        event("end: add", 62, 1, _ct=0, _c=78),
    )
    events = open_run(write(tmp_path, xspace(metadata(p7=PROGRAM), host(pool)))).events
    assert events[["op", "duration_ns"]].to_numpy().tolist() == [["a2a", 30], ["add", 5]]


def test_waits_belong_to_the_work_around_them(tmp_path):
    pool = line(
        "pool",
        thunk("a2a", 10, 50, device_ordinal=3),
        event("Rendezvous", 12, 30, name="all to all"),
        event("Wait: pending_threads=1/8", 13, 10),
    )
    waits = open_run(write(tmp_path, xspace(metadata(p7=PROGRAM), host(pool)))).rendezvous
    assert waits[["device", "op", "duration_ns"]].to_numpy().tolist() == [[3, "a2a", 30]]


def test_markers_name_the_steps(tmp_path):
    python = line(
        "python",
        *(event("train", 1000 * i + 1, 8, step_num=40 + i, _r=1) for i in range(3)),
        *(event("X::Execute (jit_step)", 1000 * i + 3, 2, run_id=i) for i in range(3)),
    )
    trace = open_run(write(tmp_path, cpu_file(python)))
    assert trace.steps["step"].tolist() == [40, 41, 42]
    assert trace.markers["step"].tolist() == [40, 41, 42]
    assert sorted(set(trace.events["step"])) == [40, 41, 42]


def test_impossible_stamps_are_left_out_and_reported(tmp_path):
    bad = line("bad", thunk("add", -5, 10), thunk("add", 50, -5))
    trace = open_run(write(tmp_path, cpu_file(bad)))
    assert verdicts(trace)["time_stamps"] == "warn"
    assert len(trace.events) == 18


def test_a_profile_without_device_work_fails_the_check(tmp_path):
    trace = open_run(write(tmp_path, xspace(metadata(p7=PROGRAM), host(line("python")))))
    assert verdicts(trace)["device_work"] == "fail"
    assert trace.events.empty
    assert trace.steps.empty


def test_a_profile_without_programs_fails_the_check(tmp_path):
    trace = open_run(write(tmp_path, xspace(host(line("pool", *step(0, 10))))))
    assert verdicts(trace)["programs"] == "fail"
    assert len(trace.events) == 3


def test_absolute_stamps_are_counted_from_the_start_of_the_capture(tmp_path):
    zero = 1_795_826_835_403_750_186
    pool = line("pool", *step(0, 500), timestamp_ns=zero)
    environment = Plane("Task Environment", stats={"profile_start_time": zero})
    trace = open_run(write(tmp_path, xspace(metadata(p7=PROGRAM), host(pool), environment)))
    assert trace.events["start_ns"].tolist() == [500, 520, 600]


def test_gpu_kernels_get_the_run_of_the_call_that_launched_them(tmp_path):
    threads = line(
        "py_xla_execute/0",
        event("[0] X LoadedExecutable::Execute (jit_step)", 5, 90, _c=-17, global_device_id=0),
        event("cuLaunchKernel", 10, 2, correlation_id=4),
    )
    kernel = event("nvjet", 200, 40, hlo_op=Ref("a2a"), program_id=7, correlation_id=4)
    gpu = Plane(
        "/device:GPU:0",
        (line("Stream #1(Compute)", kernel), line("XLA Ops", event("a2a", 200, 40))),
    )
    trace = open_run(write(tmp_path, xspace(metadata(p7=PROGRAM), gpu, host(threads))))
    assert trace.meta.platform == "gpu"
    assert trace.events[["op", "run_id", "duration_ns"]].to_numpy().tolist() == [["a2a", -17, 40]]
    assert "events derived from the streams" in trace.dropped["what"].tolist()


def launches(*names, **stats):
    """Two executions, runs -17 and -18, each with one launch: correlation ids 4 and 5."""
    spans = [
        event(name, 5 + 100 * i, 90, _c=-17 - i, **{k: v[i] for k, v in stats.items()})
        for i, name in enumerate(names)
    ]
    calls = [event("cuLaunchKernel", 10 + 100 * i, 2, correlation_id=4 + i) for i in range(2)]
    return host(line("py_xla_execute/0", *spans, *calls))


def kernel_on(device, start_ns, correlation):
    kernel = event(
        "nvjet", start_ns, 40, hlo_op=Ref("a2a"), program_id=7, correlation_id=correlation
    )
    return Plane(f"/device:GPU:{device}", (line("Stream #1(Compute)", kernel),))


@pytest.mark.parametrize(
    ("names", "ids", "planes"),
    [
        # process 1 of a run: XLA numbers planes by the process, devices by the run as well
        (("[0] X LoadedExecutable::Execute", "[1] X LoadedExecutable::Execute"), (8, 9), (0, 1)),
        # a process to which one GPU is visible counts from 0, its plane as the machine does
        (("[0] X LoadedExecutable::Execute", "[0] X LoadedExecutable::Execute"), (3, 3), (3, 3)),
        # a mesh that names the machine's second device first: the number is a place in the mesh
        (("[0] X LoadedExecutable::Execute", "[1] X LoadedExecutable::Execute"), (1, 0), (1, 0)),
        # names without a number
        (("X LoadedExecutable::Execute", "X LoadedExecutable::Execute"), (0, 1), (0, 1)),
        (("X LoadedExecutable::Execute", "X LoadedExecutable::Execute"), (8, 9), (0, 1)),
    ],
)
def test_launches_are_found_whatever_a_process_calls_its_devices(tmp_path, names, ids, planes):
    gpus = [kernel_on(planes[0], 200, 4), kernel_on(planes[1], 300, 5)]
    if planes[0] == planes[1]:
        streams = tuple(line(f"Stream #{n}", *gpu.lines[0].events) for n, gpu in enumerate(gpus))
        gpus = [Plane(gpus[0].name, streams)]
    data = xspace(metadata(p7=PROGRAM), *gpus, launches(*names, global_device_id=ids))
    found = open_run(write(tmp_path, data)).events[["start_ns", "device", "run_id"]]
    assert found.sort_values("start_ns").to_numpy().tolist() == [
        [200, planes[0], -17],
        [300, planes[1], -18],
    ]


def test_a_launch_under_one_number_on_two_devices_is_no_evidence_for_a_third(tmp_path):
    names = "[0] X LoadedExecutable::Execute", "[1] X LoadedExecutable::Execute"
    spans = [event(name, 5 + 100 * i, 90, _c=-17 - i) for i, name in enumerate(names)]
    calls = [event("cuLaunchKernel", 10 + 100 * i, 2, correlation_id=4) for i in range(2)]
    threads = host(line("py_xla_execute/0", *spans, *calls))
    gpus = [kernel_on(device, 200 + device, 4) for device in range(3)]
    trace = open_run(write(tmp_path, xspace(metadata(p7=PROGRAM), *gpus, threads)))
    assert trace.events.sort_values("device")["run_id"].tolist() == [-17, -18, -1]


def test_zero_length_events_count_and_cost_nothing(tmp_path):
    pool = line("pool", thunk("add", 10, 10), thunk("add", 20, 0), thunk("add", 20, 10))
    trace = open_run(write(tmp_path, xspace(metadata(p7=PROGRAM), host(pool))))
    assert len(trace.events) == 3
    assert trace.executions["busy_ns"].tolist() == [20]


def with_meta(folder: Path, counted_by: str, first: int, last: int) -> None:
    """What capture writes into a run folder, as far as steps are concerned."""
    window = {
        "counted_by": counted_by,
        "first_step": first,
        "last_step": last,
        "file": "plugins/profile/s1/node0.xplane.pb",
    }
    meta = {"schema": "moeprof.run/1", "processes": [{"windows": [window]}]}
    (folder / "meta.json").write_text(json.dumps(meta))


def test_steps_are_numbered_as_capture_counted_them(tmp_path):
    write(tmp_path / "plugins" / "profile" / "s1", cpu_file())
    with_meta(tmp_path, "calls of train_step", 40, 42)
    trace = open_run(tmp_path)
    assert trace.steps["step"].tolist() == [40, 41, 42]
    assert sorted(set(trace.events["step"])) == [40, 41, 42]
    assert trace.meta.are_steps_numbered_by_script


def test_numbers_of_other_steps_than_were_found_are_not_taken(tmp_path):
    write(tmp_path / "plugins" / "profile" / "s1", cpu_file())
    with_meta(tmp_path, "calls of train_step", 40, 49)
    trace = open_run(tmp_path)
    assert trace.steps["step"].tolist() == [0, 1, 2]
    assert not trace.meta.are_steps_numbered_by_script


def accumulating() -> bytes:
    """Three runs of the module, launched in one annotation."""
    python = line(
        "python",
        event("train", 1, 2900, step_num=7, _r=1),
        *(event("X::Execute (jit_step)", 1000 * i + 3, 2, run_id=i) for i in range(3)),
    )
    return cpu_file(python)


def test_the_annotation_that_capture_counted_by_is_the_step_whatever_it_holds(tmp_path):
    write(tmp_path / "plugins" / "profile" / "s1", accumulating())
    with_meta(tmp_path, "annotation train", 7, 7)
    trace = open_run(tmp_path)
    assert trace.steps[["step", "duration_ns"]].to_numpy().tolist() == [[7, 2160]]
    assert set(trace.events["step"]) == {7}


def test_without_capture_one_annotation_around_all_runs_is_doubtful(tmp_path):
    trace = open_run(write(tmp_path, accumulating()))
    assert len(trace.steps) == 3
    assert verdicts(trace)["steps"] == "warn"
    (detail,) = (check.detail for check in trace.trust if check.check == "steps")
    assert "one annotation 'train' holds 3 executions" in detail


def test_work_without_a_run_belongs_to_the_step_that_spans_it(tmp_path):
    loose = line(
        "loose",
        thunk("copy", 50, 5, run_id=-1),  # the steps span 10 to 170, 1010 to 1170, …
        thunk("copy", 500, 5, run_id=-1),
        thunk("copy", 1100, 5, program_id=-1),
    )
    trace = open_run(write(tmp_path, cpu_file(loose)))
    copies = trace.events[trace.events["op"] == "copy"]
    assert copies["step"].tolist() == [0, -1, 1]
    assert verdicts(trace)["strays"] == "ok"


def test_runs_during_a_step_that_belong_to_none_are_told(tmp_path):
    other = line("other", thunk("add", 20, 100, program_id=8, run_id=90))
    trace = open_run(write(tmp_path, cpu_file(other)))
    (check,) = (check for check in trace.trust if check.check == "strays")
    assert check.verdict == "warn"
    # 3 steps of 150 ns on 2 devices, and 100 ns that stand in step 0 only
    assert check.detail.startswith("10.0 % of device time during steps")
    assert "counts as busy time" in check.detail


def test_steps_of_several_hosts_are_in_order_of_their_number(tmp_path):
    def marked(first: int, shift: int) -> bytes:
        python = line(
            "python",
            *(event("train", 1000 * i + 1, 8, step_num=first + i, _r=1) for i in range(3)),
            *(event("X::Execute (jit_step)", 1000 * i + 3, 2, run_id=i) for i in range(3)),
        )
        work = [e for i in range(3) for e in step(i, (1000 + shift) * i + 10)]
        return xspace(metadata(p7=PROGRAM), host(line("pool", *work), python))

    write(tmp_path, marked(5, 0), "n-p0.xplane.pb")
    write(tmp_path, marked(4, 100), "n-p1.xplane.pb")
    trace = open_run(tmp_path)
    assert trace.steps["step"].tolist() == [4, 5, 6, 7]
    intervals = step_time(trace).table["interval_ns"]
    # host p0: 5, 6, 7 every 1000; host p1: 4, 5, 6 every 1100: the slowest counts, and 4 and 7,
    # which one host lacks, are not used and end no interval
    assert intervals.fillna(-1).tolist() == [-1.0, 1100.0, -1.0, -1.0]


def test_two_processes_of_a_session_are_two_hosts(tmp_path):
    for name in ("n-p0.xplane.pb", "n-p1.xplane.pb"):
        write(tmp_path, cpu_file(), name)
    trace = open_run(tmp_path)
    assert trace.meta.hosts == ("n-p0", "n-p1")
    assert trace.meta.devices == 4
    assert len(trace.steps) == 3
    assert len(trace.hlo_ops) == 3


def test_recorded_routing_is_read_from_the_run_folder(tmp_path):
    from moeprof.tables.routing import RECEIVED, ROUTING

    write(tmp_path / "plugins" / "profile" / "s1", cpu_file())
    (tmp_path / "routing").mkdir()
    routing = ROUTING.frame([{"step": 0, "layer": 1, "expert": 2, "rank": 0, "tokens": 9}])
    received = RECEIVED.frame([{"step": 0, "layer": 1, "group": 0, "rank": 0, "rows": 5}])
    routing.to_parquet(tmp_path / "routing" / "p0.parquet")
    received.to_parquet(tmp_path / "routing" / "received-p0.parquet")
    trace = open_run(tmp_path)
    assert trace.routing["tokens"].tolist() == [9]
    assert trace.received["rows"].tolist() == [5]


@pytest.mark.parametrize("lost", ["_ct", "_c"])
def test_an_end_event_that_lost_half_of_its_flow_id_ends_nothing(tmp_path, lost):
    flow = {"_ct": 0, "_c": 77}
    del flow[lost]
    end = line("other", event("end: a2a", 400, 1, **flow))
    trace = open_run(write(tmp_path, cpu_file(end)))
    whole = open_run(write(tmp_path / "whole", cpu_file()))
    assert trace.events["duration_ns"].tolist() == whole.events["duration_ns"].tolist()
