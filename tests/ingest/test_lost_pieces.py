"""Executions that lack pieces which others of the program have, and work without its launch.

A program of ten fusions of 900 ns, one every 1,000, runs on three CPU devices in four steps.
"""

from builders import gpu
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, host, line, metadata, thunk, xspace

from moeprof.ingest import open_run
from moeprof.tables.law import Need

OPS = [f"fusion.{n}" for n in range(10)]
PROGRAM = hlo_proto(
    computation(
        "main",
        op("x", "parameter", "f32[8]"),
        *(op(name, "fusion", "f32[8]", "x") for name in OPS),
    ),
    schedule={"main": ("x", *OPS)},
)


def cpu_run(folder, kept):
    """The run with those pieces of (device, step, place) that are kept."""
    lines = [
        line(
            f"tf_worker/{device}",
            *(
                thunk(
                    name,
                    1000 + 20_000 * step + 1000 * place,
                    900,
                    device_ordinal=device,
                    run_id=40 + step,
                )
                for step in range(4)
                for place, name in enumerate(OPS)
                if kept(device, step, place)
            ),
        )
        for device in range(3)
    ]
    file = folder / "n0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(*lines)))
    return open_run(file)


def law(trace, name):
    return next(law for law in trace.trust if law.check == name)


def test_executions_that_have_all_their_pieces_are_good(tmp_path):
    found = law(cpu_run(tmp_path, lambda *_: True), "pieces")
    assert (found.verdict, found.expected, found.found) == ("ok", 120, 120)


def test_a_step_in_which_a_device_lacks_pieces_is_not_used(tmp_path):
    # device 1 lacks two of its ten in the third step
    trace = cpu_run(tmp_path, lambda d, step, place: (d, step) != (1, 2) or place not in (4, 5))
    found = law(trace, "pieces")
    assert (found.verdict, found.expected, found.found) == ("warn", 120, 118)
    assert found.breaks == ()
    assert trace.steps["used"].tolist() == [True, True, False, True]
    assert trace.steps["reason"].iloc[2] == "lacks 2 of 30 pieces of its programs"


def test_where_every_step_lacks_pieces_no_time_of_devices_is_told(tmp_path):
    # one other piece of each execution is lost, of thirty in a step
    trace = cpu_run(tmp_path, lambda device, step, place: place != 3 * step % 10 or device)
    found = law(trace, "pieces")
    assert (found.verdict, found.expected, found.found) == ("fail", 120, 116)
    assert found.breaks == (Need.DEVICE_TIMES,)
    assert trace.steps["used"].all()


def test_what_one_branch_alone_runs_is_not_missed(tmp_path):
    # devices 1 and 2 skip the last three in each step, as a branch by device makes them
    trace = cpu_run(tmp_path, lambda device, _, place: place < 7 or device == 0)
    assert law(trace, "pieces").verdict == "ok"


def test_a_record_that_begins_within_its_only_step_is_warned_of(tmp_path):
    found = law(cpu_run(tmp_path, lambda _, step, place: step == 0 and place > 3), "pieces")
    assert found.verdict == "warn"
    assert found.detail.startswith("4 instructions at the beginning of a program left no trace")


def test_instructions_without_a_kernel_of_their_own_are_not_missed(tmp_path):
    trace = cpu_run(tmp_path, lambda _, step, place: place not in (3, 4, 5, 6))
    assert law(trace, "pieces").verdict == "ok"


def test_launches_that_the_host_lacks_take_the_figures_of_launches(tmp_path):
    # 2 GPUs, 3 steps of 4 kernels; the host lacks the third launch of each step on GPU 1
    ops = ("norm", "gate", "up", "down")
    missing = {gpu.number(1, step, 2) for step in range(3)}
    threads = [gpu.thread(device, 3, ops) for device in range(2)]
    kept = [
        type(each)(each.name, tuple(e for e in each.events if _id(e) not in missing))
        for each in threads
    ]
    planes = [
        Plane(
            f"/device:GPU:{device}",
            (line(gpu.STREAM, *gpu.kernels(device, 3, ops, lambda *_: True)),),
        )
        for device in range(2)
    ]
    data = xspace(metadata(p7=gpu.program(ops)), *planes, host(gpu.main_thread(3), *kept))
    file = tmp_path / "n0.xplane.pb"
    file.write_bytes(data)
    found = law(open_run(file), "host_launches")
    assert (found.verdict, found.expected, found.found) == ("fail", 24, 21)
    assert {scope.question for scope in found.scopes} == {"launch", "sync_gaps"}
    assert found.breaks == ()  # the pieces lie within their steps


def _id(item):
    return dict(item.stats).get("correlation_id")


def test_with_every_launch_the_law_holds(tmp_path):
    file = tmp_path / "n0.xplane.pb"
    file.write_bytes(gpu.gpu_file(("norm", "gate"), steps=3, devices=2))
    found = law(open_run(file), "host_launches")
    assert (found.verdict, found.expected, found.found) == ("ok", 12, 12)


def test_a_host_without_any_launch_is_not_compared(tmp_path):
    assert law(cpu_run(tmp_path, lambda *_: True), "host_launches").verdict == "unchecked"
