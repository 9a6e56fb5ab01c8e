"""Executions that the reader counts itself, on devices that were not recorded equally long."""

import json

import numpy as np
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, host, line, metadata, xspace

from moeprof.columns.table import Table
from moeprof.ingest import open_run
from moeprof.ingest.placing.run_ids import with_joint_runs
from moeprof.ingest.planes.record import MADE_UP_RUN, Launch

DOT = "%dot.4 = f32[16]{0} dot(f32[8]{0} %p, f32[8]{0} %p)"
PROGRAM = hlo_proto(computation("main", op("dot.4", "dot", "f32[16]")))


def joint(*devices, launches=(), module=7):
    """Joint ids, from 0, of executions (start, end) of each device, and what is said."""
    rows = [
        {"device": device, "module": module, "run_id": MADE_UP_RUN + place}
        | dict(start_ns=start, end_ns=end, busy_ns=end - start, ops=1)
        for device, runs in enumerate(devices)
        for place, (start, end) in enumerate(runs)
    ]
    table = Table({name: np.array([row[name] for row in rows]) for name in rows[0]})
    found = with_joint_runs(table, launches, lambda module: f"program {module}")
    ids = np.where(found.rows["run_id"] == -1, -1, found.rows["run_id"] - MADE_UP_RUN)
    return [ids[found.rows["device"] == device].tolist() for device in range(len(devices))], found


def spaced(*numbers, length=200, late=0):
    return [(1000 * n + late, 1000 * n + late + length) for n in numbers]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        # one lacks the first, the last, one in the middle
        ((spaced(0, 1, 2), spaced(1, 2, late=5)), [[0, 1, 2], [1, 2]]),
        ((spaced(1, 2), spaced(0, 1, 2)), [[1, 2], [0, 1, 2]]),
        ((spaced(0, 1, 2), spaced(0, 1)), [[0, 1, 2], [0, 1]]),
        ((spaced(0, 1, 2), spaced(0, 2)), [[0, 1, 2], [0, 2]]),
        # equally many, but not the same ones
        ((spaced(0, 1, 2), spaced(1, 2, 3)), [[0, 1, 2], [1, 2, 3]]),
        # one behind the other without a gap, a little apart: the longest overlap counts
        (
            (spaced(0, 1, 2, length=1000), spaced(1, 2, length=1000, late=100)),
            [[0, 1, 2], [1, 2]],
        ),
        # a third device lacks what the second has and the first has not
        ((spaced(1, 2, 3), spaced(0, 1, 2), spaced(0, 1)), [[1, 2, 3], [0, 1, 2], [0, 1]]),
        # apart by more than they last: by their order where they are equally many
        ((spaced(0, 1, 2), spaced(0, 1, 2, late=300)), [[0, 1, 2], [0, 1, 2]]),
        (([(0, 200), *spaced(1, 2)], [(300, 500), *spaced(1, 2)]), [[0, 1, 2], [0, 1, 2]]),
    ],
)
def test_executions_that_overlap_most_are_one(devices, expected):
    ids, found = joint(*devices)
    assert ids == expected
    assert found.notes == ()


@pytest.mark.parametrize(
    "devices",
    [
        (spaced(0, 1, 2), spaced(0, 1, late=300)),  # never at once
        ([(0, 100), (100, 200)], [(50, 150)]),  # as long in the one as in the other
    ],
)
def test_other_numbers_of_them_without_a_clear_partner_are_not_believed(devices):
    ids, found = joint(*devices, launches=[Launch(MADE_UP_RUN, 0, 0)])
    assert {one for own in ids for one in own} == {-1}
    assert found.launches == []
    (note,) = found.notes
    counts = ", ".join(str(len(own)) for own in devices)
    assert note.startswith(f"executions of program 7 are not told apart: the devices have {counts}")


def test_launches_follow_their_execution_by_the_device_that_tells_it():
    launches = [Launch(MADE_UP_RUN + n, 1000 * n, 0) for n in range(3)]
    launches += [Launch(MADE_UP_RUN + n, 1000 * n + 1005, 1) for n in range(2)]
    launches += [
        Launch(-5, 7),
        Launch(MADE_UP_RUN + 9, 9, 1),
    ]  # one has no work
    _, found = joint(spaced(0, 1, 2), spaced(1, 2), launches=launches)
    assert [(launch.run_id, launch.start_ns) for launch in found.launches] == [
        *((MADE_UP_RUN + n, 1000 * n) for n in range(3)),
        (-5, 7),
    ]


def core(number, runs, *more):
    """A core of a TPU with executions of 200 ns each 1000 ns."""
    starts = [1000 * run + 10 for run in runs]
    return Plane(
        f"/device:TPU:{number}",
        (
            line("XLA Modules", *(event("jit_step(7)", at, 200) for at in starts)),
            line("XLA Ops", *(event(DOT, at, 200) for at in starts)),
            *more,
        ),
    )


def opened(folder, *planes):
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), *planes))
    return open_run(file)


LATE = "work of 1 of 2 devices"


def test_a_core_that_was_recorded_late_lacks_the_first_step_alone(tmp_path):
    trace = opened(tmp_path, core(0, range(6)), core(1, range(1, 6)))
    assert trace.steps["duration_ns"].tolist() == [200] * 6
    assert trace.steps["reason"].tolist() == [LATE, "", "", "", "", ""]
    steps = trace.events.groupby("device")["step"].unique()
    assert steps[1].tolist() == [1, 2, 3, 4, 5]


def test_steps_of_a_core_own_the_same_executions_on_all(tmp_path):
    steps = line("Steps", *(event(str(40 + n), 1000 * n + 5, 900) for n in range(6)))
    for planes in (
        (core(0, range(6), steps), core(1, range(1, 6))),
        (core(0, range(1, 6)), core(1, range(6), steps)),
    ):
        trace = opened(tmp_path, *planes)
        assert trace.steps["step"].tolist() == [40, 41, 42, 43, 44, 45]
        assert trace.steps["duration_ns"].tolist() == [200] * 6
        assert trace.steps["reason"].tolist() == [LATE, "", "", "", "", ""]


def test_executions_on_the_derived_line_of_gpus_are_told_by_their_times(tmp_path):
    def gpu(number, runs):
        starts = [1000 * run + 10 for run in runs]
        kernels = [event("k", at, 200, program_id=7) for at in starts]
        copies = [event("MemcpyD2D", at + 150, 20) for at in starts]  # of no program
        modules = (event("jit_step", at, 205) for at in starts)
        waits = (event("Stream Sync", at, 100, program_id=7) for at in starts)
        lines = (
            *(line("Stream #1(Compute)", *kernels), line("Stream #2(Memcpy)", *copies)),
            *(line("Stream #3(Sync)", *waits), line("XLA Modules", *modules)),
        )
        return Plane(f"/device:GPU:{number}", lines)

    trace = opened(tmp_path, host(), gpu(0, range(6)), gpu(1, range(1, 6)))
    assert trace.steps["duration_ns"].tolist() == [200] * 6
    assert trace.steps["reason"].tolist() == [LATE, "", "", "", "", ""]
    late = trace.events[trace.events["device"] == 1]
    by_kind = late.groupby("kind", observed=True)["run_id"].agg(list)
    expected = [MADE_UP_RUN + n for n in range(1, 6)]
    assert by_kind["kernel"] == expected
    assert by_kind["copy"] == expected
    assert by_kind["sync"] == [-1] * 5


def test_a_json_trace_tells_executions_of_cores_by_their_times(tmp_path):
    names = ("Steps", "XLA Modules", "XLA Ops")
    rows = []
    for core_, runs in ((0, range(6)), (1, range(1, 6))):
        pid = 3 + core_
        rows.append(
            {"ph": "M", "pid": pid, "name": "process_name"}
            | {"args": {"name": f"/device:TPU:{core_}"}}
        )
        rows += [
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
            for tid, name in enumerate(names, 1)
        ]
        for run in runs:
            for tid, name, length in ((1, str(run), 0.9), (2, "jit_step(7)", 0.2), (3, "dot", 0.2)):
                rows.append(
                    {"ph": "X", "pid": pid, "tid": tid, "name": name, "dur": length}
                    | {"ts": run + 0.01}
                )
    file = tmp_path / "a.trace.json"
    file.write_text(json.dumps({"traceEvents": rows}))
    trace = open_run(file)
    assert trace.steps["duration_ns"].tolist() == [200] * 6
    assert trace.steps["reason"].tolist() == [LATE, "", "", "", "", ""]


def test_cores_whose_executions_cannot_be_paired_give_no_step_and_a_note(tmp_path):
    late = core(1, range(5))
    moved = Plane(
        late.name,
        tuple(
            line(own.name, *(event(e.name, e.start_ns + 300, 200) for e in own.events))
            for own in late.lines
        ),
    )
    trace = opened(tmp_path, core(0, range(6)), moved)
    assert trace.steps.empty
    assert any("the devices have 6, 5 of them" in note for note in trace.meta.notes)
