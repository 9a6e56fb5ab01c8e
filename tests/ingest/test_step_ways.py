"""Every way to the steps of a capture gives the same ones, or the record says why it does not."""

import json
import shutil
from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.mutated import ANNOTATIONS, FLOWS, LAUNCHES, RUN_IDS, without
from builders.xspace import Event, Plane, Ref, event, host, line, metadata, xspace

from moeprof.ingest import open_run
from moeprof.ingest.placing.step import Found, step_ways
from moeprof.ingest.planes.record import Marker
from moeprof.ingest.sources.run_record import Counting

GPU_CAPTURES = Path(__file__).parent.parent / "data" / "gpu"

PROGRAM = hlo_proto(computation("main", op("dot.1", "add", "f32[8]"), op("add.2", "add", "f32[8]")))
NUMBERS = (21, 22, 23, 24)


def law(trace):
    return next(own for own in trace.trust if own.check == "step_ways")


def steps(trace):
    used = trace.steps[trace.steps["used"]]
    return used[["step", "start_ns", "duration_ns"]].to_numpy().tolist()


def capture(*, execute=None, called_on="python", lag_ns=0, also_on=None) -> bytes:
    """Four steps, each 100 us of host time; the device is 250 us behind, and 60 us at one.

    `execute` are stats of the call that runs the program, which None leaves out. Kernels are
    launched on the thread `called_on`, `lag_ns` behind the call; `also_on` names another event on a
    thread.
    """
    main, calls, kernels = [], [], []
    for place, number in enumerate(NUMBERS):
        at = 100_000 * (place + 1)
        main.append(event("train", at, 90_000, step_num=number))
        if execute is not None:
            stats = {name: value + place for name, value in execute.items()}
            kind = {"_pt": 5} if "_p" in stats else {}
            name = "CommonPjRtLoadedExecutable::Execute (jit_step)"
            main.append(event(name, at + 5_000, 80_000, **stats, **kind))
        for own, name in enumerate(("dot.1", "add.2")):
            calls.append(
                event("cuLaunchKernel", at + 10_000 * (own + 1) + lag_ns, 3_000, **_id(place, own))
            )
            begun = at + 250_000 + 30_000 * own
            kernels.append(
                event("k", begun, 30_000, hlo_op=Ref(name), program_id=7, **_id(place, own))
            )
    lines = {"python": list(main)}
    lines.setdefault(called_on, []).extend(calls)
    for name, other in (also_on or {}).items():
        lines[name].append(event(other, 100_000, 400_000))
    threads = [line(name, *sorted(own, key=_start)) for name, own in lines.items()]
    gpu = Plane("/device:GPU:0", (line("Stream #9(Compute)", *kernels),))
    return xspace(metadata(p7=PROGRAM), gpu, host(*threads))


def _start(item: Event) -> float:
    return item.start_ns


def _id(place: int, own: int) -> dict[str, int]:
    return {"correlation_id": 10 * place + own + 1}


RIGHT = [[number, 350_000 + 100_000 * place, 60_000] for place, number in enumerate(NUMBERS)]


@pytest.mark.parametrize(
    "given",
    [
        {"execute": {"run_id": -9_000}},  # the call of a program of one device, on its thread
        {"execute": {"_p": 300}},  # a flow alone
        {"execute": {"run_id": -9_000}, "called_on": "Host Threads/7"},  # no thread is told
        {"execute": None},  # launches of kernels lie in the annotations
        {"execute": None, "called_on": "worker", "lag_ns": 95_000},  # a thread runs behind
    ],
)
def test_steps_are_the_annotated_ones_however_executions_are_told(tmp_path, given):
    file = tmp_path / "node.xplane.pb"
    file.write_bytes(capture(**given))
    trace = open_run(file)
    assert steps(trace) == RIGHT
    assert law(trace).verdict == "ok"


def test_calls_of_threads_that_run_behind_are_not_joined_by_time(tmp_path):
    """The worker launches 95 us behind, when the host is in the next step's call already."""
    file = tmp_path / "node.xplane.pb"
    given = {"execute": {"run_id": 40}, "called_on": "worker", "lag_ns": 95_000}
    file.write_bytes(capture(**given, also_on={"worker": "GpuExecutable::ExecuteThunks"}))
    trace = open_run(file)
    assert steps(trace) == RIGHT


def folder(tmp_path, data, annotation="train"):
    """A run folder whose record asks for the annotation."""
    run = tmp_path / "run"
    file = run / "plugins" / "profile" / "s" / "node-p0.xplane.pb"
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    window = {
        **{"counted_by": f"annotation {annotation}", "first_step": 21, "last_step": 24},
        "file": "plugins/profile/s/node-p0.xplane.pb",
    }
    meta = {"schema": "moeprof.run/1", "processes": [{"windows": [window]}]}
    (run / "meta.json").write_text(json.dumps(meta))
    return run


@pytest.mark.parametrize("execute", [None, {"run_id": 40}, {"_p": 40}])
def test_a_run_folder_gives_the_steps_of_its_file(tmp_path, execute):
    run = folder(tmp_path, capture(execute=execute))
    trace = open_run(run)
    assert steps(trace) == RIGHT
    assert (law(trace).verdict, law(trace).expected, law(trace).found) == ("ok", 4, 4)


def test_an_annotation_that_owns_no_execution_does_not_win(tmp_path):
    run = folder(tmp_path, capture(execute={"run_id": 40}), annotation="fit")
    trace = open_run(run)
    assert [row[1:] for row in steps(trace)] == [row[1:] for row in RIGHT]
    assert law(trace).verdict == "warn"
    assert "the annotation 'fit', with which no execution can be joined" in law(trace).detail


def test_what_capture_counted_and_the_profile_lacks_is_told(tmp_path):
    data = capture(execute={"run_id": 40})
    run = folder(tmp_path, data)
    meta = json.loads((run / "meta.json").read_text())
    meta["processes"][0]["windows"][0]["last_step"] = 26
    (run / "meta.json").write_text(json.dumps(meta))
    found = law(open_run(run))
    assert (found.verdict, found.expected, found.found) == ("warn", 6, 4)
    assert "capture counted 6 steps, 4 have device work" in found.detail


REMOVED = {
    "run ids": RUN_IDS,
    "flows": FLOWS,
    "run ids and flows": RUN_IDS + FLOWS,
    "correlation ids": LAUNCHES,
    "all ids": RUN_IDS + FLOWS + LAUNCHES,
    "annotations": ANNOTATIONS,
}


@pytest.mark.parametrize("name", ["sparse-gmm-deepep-graphs", "sparse-ragged-dot"])
@pytest.mark.parametrize("removed", REMOVED)
def test_a_recorded_run_keeps_its_steps_without(tmp_path, name, removed):
    source = GPU_CAPTURES / name
    run = tmp_path / "run"
    shutil.copytree(source, run, ignore=shutil.ignore_patterns("plugins"))
    [file] = source.glob("plugins/profile/*/*.xplane.pb.gz")
    place = run / file.relative_to(source)
    without(file, REMOVED[removed], place.with_suffix(""))
    trace = open_run(run)
    assert steps(trace) == steps(open_run(source))
    if removed == "annotations":
        assert "with which no execution can be joined" in law(trace).detail
    else:
        assert law(trace).verdict == "ok"


def told_apart_alone(*, shown: tuple[int, ...], ran: int) -> bytes:
    """Executions on a line of their own, and annotations; no call is recorded.

    A step takes 100 us on both, the device is one step behind. The first execution ends in the
    annotation of step 21.
    """
    spans = [event("train", 100_000 * n, 90_000, step_num=n) for n in shown]
    runs, kernels = [], []
    for place in range(ran):
        at = 2_110_000 + 100_000 * place
        runs.append(event("jit_step(7)", at, 70_000))
        kernels += [
            event("k", at + 30_000 * own, 30_000, hlo_op=Ref(name), program_id=7)
            for own, name in enumerate(("dot.1", "add.2"))
        ]
    lines = (line("Stream #9(Compute)", *kernels), line("XLA Modules", *runs))
    return xspace(metadata(p7=PROGRAM), Plane("/device:GPU:0", lines), host(line("python", *spans)))


def test_as_many_annotations_as_executions_may_be_off_by_one_where_no_call_is_known(tmp_path):
    """The capture opened in step 20, whose work is the first; that of step 24 was not recorded."""
    file = tmp_path / "node.xplane.pb"
    file.write_bytes(told_apart_alone(shown=NUMBERS, ran=4))
    trace = open_run(file)
    assert not trace.meta.are_steps_numbered_by_script
    assert [row[0] for row in steps(trace)] == [0, 1, 2, 3]
    assert law(trace).verdict == "warn"
    assert "cannot be joined: the executions are the steps" in law(trace).detail


def test_a_window_of_capture_begins_with_its_first_annotation(tmp_path):
    data = told_apart_alone(shown=NUMBERS, ran=4)
    trace = open_run(folder(tmp_path, data))  # it counted 21 to 24
    assert trace.meta.are_steps_numbered_by_script
    assert [row[0] for row in steps(trace)] == list(NUMBERS)
    assert law(trace).verdict == "ok"


def test_annotations_that_capture_did_not_count_are_not_joined_by_order(tmp_path):
    data = told_apart_alone(shown=(22, 23, 24, 25), ran=4)
    trace = open_run(folder(tmp_path, data))
    assert law(trace).verdict == "warn"
    assert "'train', with which no execution can be joined" in law(trace).detail


def ways(runs, owners, *, markers=0, counted=0):
    """Ways to steps of annotations 'train', of which `owners` gives that of each execution."""
    shown = [Marker("train", n, 100 * n, 100 * n + 90) for n in range(markers)]
    counting = Counting("train", 0, counted - 1) if counted else None
    number = len(set(owners)) if owners else len(runs)
    return step_ways(runs, [], counting, Found(shown, dict(enumerate(owners))), number)


@pytest.mark.parametrize("counted", [0, 5])
def test_steps_of_several_executions_are_compared_with_annotations(counted):
    """Five steps of three micro-steps each."""
    found = ways(range(15), [run // 3 for run in range(15)], markers=5, counted=counted)
    assert (found.apart, found.expected, found.steps) == ("", 5, 5)
    assert ("executions of the largest program", 15) in found.counts


def test_more_steps_than_capture_counted_are_told():
    found = ways(range(15), [], counted=5)
    assert (found.expected, found.steps) == (5, 15)
    assert "capture counted 5 steps, 15 are found" in found.apart
