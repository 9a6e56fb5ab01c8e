"""Question: which executions are one, where no id tells it: on several devices, or by launches?

The place of an execution on its own device says that only if every device was recorded from the
same execution on. Capture may begin late on one of them, or lose some; then executions that overlap
in time most, each the other's best, are one. Between two such pairs, and before the first and
behind the last:

- executions that only one device has are its own: the others lack them;
- equally many of both are one by their order, though they do not overlap: devices run apart;
- any other two numbers can be read in several ways, and no execution of the program is believed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from moeprof.columns.grouping import grouped_columns
from moeprof.columns.table import Table
from moeprof.ingest.planes.record import MADE_UP_RUN, Calls, Launch, Marker, is_made_up
from moeprof.ingest.xspace.space import Flags, Int64s

_UNKNOWN = -1


class JointRuns(NamedTuple):
    """Executions and launches with ids that all devices share, and what is to be said of them."""

    rows: Table
    launches: list[Launch]
    notes: tuple[str, ...] = ()


def with_joint_runs(
    rows: Table, launches: Sequence[Launch], name_of: Callable[[int], str]
) -> JointRuns:
    """`rows` of `number_executions` with made-up run ids counted anew, by start over all devices.

    Ids that the runtime gave stay as they are. A launch of no execution with work is left out.
    """
    modules, starts = rows["module"], rows["start_ns"]
    made_up = is_made_up(rows["run_id"])
    if not made_up.any():
        return JointRuns(rows, list(launches))
    found: list[tuple[int, int, list[int]]] = []  # start, module, rows of one execution
    notes = []
    counted = np.flatnonzero(made_up & (modules != -1))
    for places in grouped_columns([modules[counted]]).rows():
        mine = counted[places]
        module, one = int(modules[mine[0]]), _grouped(rows, mine)
        if one is None:
            sizes = grouped_columns([rows["device"][mine]]).size
            notes.append(
                f"executions of {name_of(module)} are not told apart: the devices have "
                f"{', '.join(map(str, sizes.tolist()))} of them, and which of these are one is not "
                "clear from their times"
            )
            continue
        found += [(int(starts[own].min()), module, own) for own in one]
    run_id = np.where(made_up, _UNKNOWN, rows["run_id"])
    for number, (_, _, own) in enumerate(sorted(found)):
        run_id[own] = MADE_UP_RUN + number
    joint_of = _by_device_and_run(rows, run_id, made_up)
    nameless = made_up & (modules == -1)
    run_id[nameless] = [
        joint_of.get(place, _UNKNOWN) for place in rows[nameless].rows("device", "run_id")
    ]
    return JointRuns(rows.assign(run_id=run_id), _renamed(launches, joint_of), tuple(notes))


def _by_device_and_run(rows: Table, run_id: Int64s, made_up: Flags) -> dict[tuple[int, int], int]:
    """(device, id as counted on it) -> joint id, where there is one and no other."""
    known: dict[tuple[int, int], set[int]] = defaultdict(set)
    is_known = made_up & (run_id != _UNKNOWN)
    places = rows[is_known].rows("device", "run_id")
    for place, joint in zip(places, run_id[is_known].tolist(), strict=True):
        known[place].add(joint)
    return {place: joints.pop() for place, joints in known.items() if len(joints) == 1}


def _renamed(launches: Sequence[Launch], joint_of: dict[tuple[int, int], int]) -> list[Launch]:
    """Launches by joint id. An execution begins in the step of the first device that tells one."""
    kept: list[Launch] = []
    told: set[int] = set()
    made_up = is_made_up(np.array([launch.run_id for launch in launches], np.int64))
    for launch, is_counted in zip(launches, made_up.tolist(), strict=True):
        if not is_counted:
            kept.append(launch)
            continue
        joint = joint_of.get((launch.device, launch.run_id))
        if joint is not None and joint not in told:
            told.add(joint)
            kept.append(launch._replace(run_id=joint))
    return kept


class _Runs(NamedTuple):
    """Executions by start, in ns, each with a number of its own."""

    start_ns: Int64s
    end_ns: Int64s
    number: Int64s


def _grouped(rows: Table, mine: Int64s) -> list[list[int]] | None:
    """Rows of each execution of one module over all devices; None where that is not clear.

    `mine` are its rows on any of them.
    """
    by_start = mine[np.argsort(rows["start_ns"][mine], kind="stable")]
    devices = [
        _Runs(rows["start_ns"][own], rows["end_ns"][own], own)
        for own in (by_start[at] for at in grouped_columns([rows["device"][by_start]]).rows())
    ]
    devices.sort(key=lambda runs: -len(runs.number))
    joint = devices[0]
    members = {row: [row] for row in joint.number.tolist()}
    for runs in devices[1:]:
        pairs = _pairs(joint, runs)
        if pairs is None:
            return None
        for first, second in pairs:
            members[int(joint.number[first])].append(int(runs.number[second]))
        taken = {second for _, second in pairs}
        own = [at for at in range(len(runs.number)) if at not in taken]
        members |= {row: [row] for row in runs.number[own].tolist()}
        both = [np.concatenate([a, b[own]]) for a, b in zip(joint, runs, strict=True)]
        order = np.argsort(both[0], kind="stable")
        joint = _Runs(*(column[order] for column in both))
    return list(members.values())


def _pairs(one: _Runs, other: _Runs) -> list[tuple[int, int]] | None:
    """Places of executions of both that are one, in order; None where that is not clear."""
    first, second = _best_of_each_other(one, other)
    if (np.diff(first) <= 0).any() or (np.diff(second) <= 0).any():
        return None
    sure = list(zip(first.tolist(), second.tolist(), strict=True))
    found = list(sure)
    ends = [(-1, -1), *sure, (len(one.number), len(other.number))]
    for (a, b), (next_a, next_b) in pairwise(ends):
        left, right = range(a + 1, next_a), range(b + 1, next_b)
        if left and right:
            if len(left) != len(right):
                return None
            found += zip(left, right, strict=True)
    return found


def _best_of_each_other(one: _Runs, other: _Runs) -> tuple[Int64s, Int64s]:
    """Places of the pairs that overlap each other longer than any other, by start."""
    first = np.searchsorted(np.maximum.accumulate(one.end_ns), other.start_ns, "right")
    last = np.searchsorted(one.start_ns, other.end_ns, "left")
    count = np.maximum(last - first, 0)
    b = np.repeat(np.arange(len(count)), count)
    a = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - first, count)
    overlap = np.minimum(one.end_ns[a], other.end_ns[b]) - np.maximum(
        one.start_ns[a], other.start_ns[b]
    )
    is_pair = (
        (overlap > 0)
        & _is_only_longest(overlap, a, len(one.number))
        & _is_only_longest(overlap, b, len(other.number))
    )
    order = np.argsort(a[is_pair], kind="stable")
    return a[is_pair][order], b[is_pair][order]


def _is_only_longest(overlap: Int64s, owner: Int64s, owners: int) -> np.ndarray:
    """Whether each overlap is the longest of its owner, and no other is as long."""
    longest = np.zeros(owners, np.int64)
    np.maximum.at(longest, owner, overlap)
    is_longest = overlap == longest[owner]
    times = np.bincount(owner[is_longest], minlength=owners)
    flags: np.ndarray = is_longest & (times[owner] == 1)
    return flags


# Executions by the calls of their kernels, where no call of an execution tells its id.
#
# A capture may lack the calls that run programs, while the annotations and the launches of
# kernels are there, as these are recorded by others. The first launch of an execution then says
# when the host called it. Where not even executions can be told apart, what was launched in one
# annotation is one execution.

_FIRST_RUN = 2**39
"""Ids of executions by annotation: above those that runtimes count, below those of the reader."""
_MOST = 0.5
"""Share of the work that must be launched in annotations, so that these tell it."""


def with_calls(
    launches: Sequence[Launch], rows: Table, work: Table, number: Int64s, calls: Calls
) -> list[Launch]:
    """`launches`; where none is of an execution, those of counted ones by their first kernel's.

    `rows` are the executions, `number` the row of each piece of `work`.
    """
    run_id = rows["run_id"]
    lacking = is_made_up(run_id)
    is_called = np.isin(run_id, [launch.run_id for launch in launches])
    if is_called.any() or not lacking.any() or not len(calls.correlation):
        return list(launches)
    place = calls.of(work["correlation_id"])
    pieces = np.flatnonzero((place >= 0) & lacking[number])
    pieces = pieces[np.argsort(calls.start_ns[place[pieces]], kind="stable")]
    runs, first = np.unique(run_id[number[pieces]], return_index=True)
    at = place[pieces[first]]
    found = zip(runs.tolist(), calls.start_ns[at].tolist(), calls.line[at].tolist(), strict=True)
    return [*launches, *(Launch(run, start, -1, line) for run, start, line in found)]


def with_annotated_runs(
    work: Table, markers: Sequence[Marker], calls: Calls
) -> tuple[Table, list[Launch]]:
    """Run ids, where no piece of work has one, by the annotations that it was launched in.

    Only launches on the thread of the annotations count: others run behind it.
    """
    run_id = work["run_id"]
    lacking = work["module"] != -1
    is_told = (run_id != -1).any() or not lacking.any()
    if not len(markers) or not len(calls.correlation) or is_told:
        return work, []
    mine = sorted(_of_one_name(markers), key=lambda marker: marker.start_ns)
    starts = np.array([marker.start_ns for marker in mine], np.int64)
    ends = np.array([marker.end_ns for marker in mine], np.int64)
    lines = np.array([marker.line for marker in mine], np.int64)
    place = calls.of(work["correlation_id"])
    called = calls.start_ns[np.maximum(place, 0)]
    at = np.maximum(np.searchsorted(starts, called, "right") - 1, 0)
    is_in = (place >= 0) & (called >= starts[at]) & (called <= ends[at])
    is_in &= (calls.line[np.maximum(place, 0)] == lines[at]) & lacking
    if is_in.sum() <= _MOST * lacking.sum():
        return work, []
    found = work.assign(run_id=np.where(is_in, _FIRST_RUN + at, run_id))
    launches = [Launch(_FIRST_RUN + n, int(start)) for n, start in enumerate(starts.tolist())]
    return found, launches


def _of_one_name(markers: Sequence[Marker]) -> list[Marker]:
    """Annotations of the name that most have: of several names one may lie in another."""
    by_name: dict[str, list[Marker]] = defaultdict(list)
    for marker in markers:
        by_name[marker.name].append(marker)
    return max(by_name.values(), key=len)
