"""Is all that was launched in the record, once, in all its pieces and no longer than it ran?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeprof.columns.grouping import grouped, grouped_columns
from moeprof.columns.table import Table
from moeprof.ingest.placing.lost_launches import UNKNOWN, DeviceCalls
from moeprof.ingest.placing.lost_pieces import FEW
from moeprof.ingest.placing.too_long import SERIAL_KINDS
from moeprof.ingest.trust.evidence import Evidence, HostLosses, Stream
from moeprof.tables.law import Law, Need, Scope, Verdict
from moeprof.units import format_count, format_ns, format_percent

_LISTED = 3
_MOST_OVERLAP = 0.1
"""With programmatic dependent launch a kernel begins while the one before it drains: up to 2 % of
a stream's time in a step where kernels take microseconds. What is recorded twice doubles it."""

_MOST_OF_IT = 0.5
"""Kernels of one launch and name, of unknown nodes, are one recorded twice where more is shared."""


def launches(evidence: Evidence) -> Law:
    """Whether each launch on the host has its work on the device."""
    found = [(losses, own) for losses in evidence.losses for own in losses.lost.devices]
    total = sum(own.launches for _, own in found)
    if not total:
        return Law("launches", "unchecked", "no launch on the host that kernels could belong to")
    lost, partial = (sum(getattr(own, n) for _, own in found) for n in ("lost", "partial"))
    late = sum(losses.lost.at_the_end for losses in evidence.losses)
    if not lost and not partial:
        detail = f"{format_count(total)} launches, each with its work"
        detail += f"; {format_count(late)} had not run when the capture ended" if late else ""
        detail = "; ".join(filter(None, (detail, _not_compared(evidence))))
        return Law("launches", "ok", detail, expected=total, found=total, unit="launches")
    worst = sorted(found, key=lambda pair: -pair[1].lost - pair[1].partial)
    worst = [pair for pair in worst if pair[1].lost or pair[1].partial]
    told = [_told(evidence, *pair, total) for pair in worst[:_LISTED]]
    if len(worst) > _LISTED:
        told.append(f"{len(worst) - _LISTED} more device(s) lack work")
    partly = _left_out(evidence)
    no_step = _no_step_is_left(evidence)
    return Law(
        "launches",
        "fail" if partly or no_step else "warn",
        "; ".join(filter(None, [*told, *_consequences(evidence), _not_compared(evidence)])),
        breaks=(Need.DEVICE_TIMES,) if no_step else (Need.EVERY_DEVICE,) if partly else (),
        expected=total,
        found=total - lost,
        unit="launches",
        scopes=tuple(Scope("timeline", host=host, device=device) for host, device in partly),
    )


def _not_compared(evidence: Evidence) -> str:
    count = sum(losses.lost.not_compared for losses in evidence.losses)
    if not count:
        return ""
    what = "copies by calls that never have a record, or launches on devices that ran no program"
    return f"{count:,} more call(s) not compared: {what}"


def _told(evidence: Evidence, losses: HostLosses, own: DeviceCalls, total: int) -> str:
    name = _gpu(evidence, losses.host, own.device)
    parts = []
    if own.lost:
        of_all = f"; {format_percent(own.lost / total)} of all {total:,}"
        parts.append(
            f"{own.lost:,} of {name}'s {own.launches:,} launches have no kernel "
            f"({format_percent(own.lost / own.launches)}{of_all if total > own.launches else ''})"
            f"{_which_steps(evidence, own)}"
        )
    if own.partial:
        parts.append(f"{own.partial:,} replays of graphs on {name} are recorded in part")
    return "; ".join(parts)


def _which_steps(evidence: Evidence, own: DeviceCalls) -> str:
    numbers = evidence.steps["step"]
    if own.is_silent or own.first_step == -1 or not len(numbers):
        return ""
    if own.first_step == own.last_step:
        return f", in step {own.first_step}"
    if own.last_step == int(numbers[-1]) and own.first_step != int(numbers[0]):
        return f", all from step {own.first_step} on"
    return f", in steps {own.first_step} to {own.last_step}"


def _left_out(evidence: Evidence) -> list[tuple[str, int]]:
    """Devices of which nothing is told: they have no record, or lack most of it."""
    return [
        (losses.host, own.device)
        for losses in evidence.losses
        for own in losses.lost.devices
        if own.is_silent or own.device in losses.lost.excluded
    ]


def _no_step_is_left(evidence: Evidence) -> bool:
    """Then figures are of the whole capture, which lacks the work that was lost."""
    is_used = bool(evidence.steps["used"].any())
    left = [own for losses in evidence.losses for own in losses.lost.devices if not own.is_silent]
    return not is_used and any(own.lost or own.partial for own in left)


def _consequences(evidence: Evidence) -> list[str]:
    out = _left_out(evidence)
    dropped = {step for losses in evidence.losses for step in losses.lost.of_steps}
    said = []
    if out:
        names = ", ".join(_gpu(evidence, *place) for place in out[:_LISTED])
        names += ", …" if len(out) > _LISTED else ""
        left = len(evidence.tally.places)
        said.append(f"{names} left out: figures are those of {left} GPU(s)")
    if dropped:
        said.append(f"{len(dropped)} step(s) that lack work are not used")
    return said


def _gpu(evidence: Evidence, host: str, device: int) -> str:
    name = f"GPU {device}" if device != UNKNOWN else "a GPU"
    return f"{name} of {host}" if len(evidence.hosts) > 1 else name


def devices(evidence: Evidence) -> Law:
    """Whether each device that ran something has a record."""
    if not any(losses.knows_devices for losses in evidence.losses):
        return Law("devices", "unchecked", "the host does not tell which devices ran a program")
    silent = [(losses.host, device) for losses in evidence.losses for device in losses.silent]
    excluded = sum(len(losses.lost.excluded) for losses in evidence.losses)
    told = len(evidence.tally.places) + excluded
    expected = told + len(silent)
    figures = replace(
        Law("devices", "ok", f"{told} GPU(s) ran programs, each has a record"),
        expected=expected,
        found=told,
        unit="GPUs",
    )
    if not silent:
        return figures
    known = [place for place in silent if place[1] != UNKNOWN]
    names = ", ".join(_gpu(evidence, *place) for place in known[:8])
    names += ", …" if len(known) > 8 else ""
    detail = (
        f"{expected} GPUs ran programs, {len(silent)} of them without a record"
        f"{f' ({names})' if names else ''}: figures are those of {told - excluded} GPU(s)"
    )
    scopes = tuple(Scope("timeline", host=host, device=device) for host, device in known)
    breaks = (Need.EVERY_DEVICE,)
    return replace(figures, verdict="fail", detail=detail, breaks=breaks, scopes=scopes)


def last_kernels(evidence: Evidence) -> Law:
    """Whether the last piece of each stream ends as its like do."""
    found = [(losses.host, one) for losses in evidence.losses for one in losses.endless]
    if evidence.tally.worst is None:
        return Law("last_kernels", "unchecked", "no stream of a GPU")
    if not found:
        return Law("last_kernels", "ok", "no last piece of a stream is longer than its like")
    host, worst = max(found, key=lambda pair: pair[1].recorded_ns)
    where = f" of {host}" if len(evidence.hosts) > 1 else ""
    what = "the record of the last kernel is too long"
    if not worst.is_cut:
        what = "the last kernel waits to the end of the record, or its record is too long"
    detail = f"{what}: {worst.told}{where}"
    if len(found) > 1:
        detail += f", and of {len(found) - 1} more stream(s)"
    steps = sorted({one.step for _, one in found if one.step != -1})
    if steps:
        listed = ", ".join(map(str, steps[:_LISTED]))
        detail += f"; step {listed} is not used" if len(steps) == 1 else f"; steps {listed} are not"
    cut = [one for _, one in found if one.is_cut]
    if cut:
        detail += f"; cut to the longest of the others, {format_ns(cut[0].longest_ns)}"
    return Law(
        "last_kernels",
        "warn",
        detail,
        expected=worst.median_ns,
        found=worst.recorded_ns,
        unit="ns",
    )


def stream_time(evidence: Evidence) -> Law:
    """Whether the work on one stream, summed, takes no longer than the time it covers.

    By stream and step. Pieces of one launch, nodes of a graph, may run at once and be recorded on
    one stream: they are one stretch, unless the same node or kernel runs beside itself.
    """
    worst = evidence.tally.worst
    if worst is None:
        return Law("stream_time", "unchecked", "no stream of a GPU")
    if evidence.tally.are_within:
        detail = "work on each stream, summed, takes no longer than the time it covers"
        return Law("stream_time", "ok", detail)
    where = f"'{worst.line}' of {_gpu(evidence, worst.host, worst.device)}"
    where += f", step {worst.step}," if worst.step != -1 else ""
    found = int(worst.covered + worst.twice)
    detail = (
        f"{format_ns(found)} of work on {where} in {format_ns(worst.covered)}: "
        "several streams are taken for one, or work is recorded twice"
    )
    return Law(
        "stream_time",
        "fail",
        detail,
        (Need.DEVICE_TIMES,),
        expected=worst.covered,
        found=found,
        unit="ns",
    )


_OF_STREAMS = (
    *("line", "host", "device", "step", "start_ns", "duration_ns"),
    *("correlation_id", "graph_node", "name"),
)


def worst_stream(events: Table) -> tuple[Stream | None, bool]:
    """The stream in a step of which the largest part counts twice; whether all of them may be."""
    events = events.select(*_OF_STREAMS)[events["kind"].isin(SERIAL_KINDS)]
    if not events:
        return None, True
    place = grouped(events, "line", "host", "device", "step", is_sorted=False).of
    covered, twice = _covered_and_twice(events, place)
    worst = int(np.argmax(twice / np.maximum(covered, 1)))
    first = slice(at := int(np.flatnonzero(place == worst)[0]), at + 1)
    where = next(events[first].rows("line", "host", "device", "step"))
    stream = Stream(int(covered[worst]), float(twice[worst]), *where)
    return stream, bool((twice <= _MOST_OVERLAP * covered).all())


def _covered_and_twice(events: Table, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By place, in ns: the time that work covers, and how much of it counts more than once.

    Stretches are of pieces of one launch, one behind the other: ids may be used again.
    """
    count = int(place.max()) + 1
    order = np.lexsort((events["start_ns"], place))
    of, start = place[order], events["start_ns"][order]
    end = start + events["duration_ns"][order]
    is_in = _overlaps(of, start, end) > 0
    if not is_in.any():
        return np.bincount(of, end - start, count), np.zeros(count)
    launch = _launch_numbers(events)[order]
    begins = np.flatnonzero(np.append(True, (of[1:] != of[:-1]) | (launch[1:] != launch[:-1])))
    first, last = start[begins], np.maximum.reduceat(end, begins)
    twice = np.bincount(of[begins], _overlaps(of[begins], first, last), count)
    covered = np.bincount(of[begins], last - first, count) - twice
    own = np.flatnonzero(np.isin(launch, launch[is_in]))
    graph_node = events["graph_node"][order[own]]
    names = events["name"].codes[order[own]].astype(np.int64)
    same = _same_again(of[own], launch[own], graph_node, names)
    by_same = np.argsort(same, kind="stable")  # in each, still by start
    own, same = own[by_same], same[by_same]
    beside = _overlaps(same, start[own], end[own])
    has_no_node = events["graph_node"][order[own]] < 0
    may_be_another = has_no_node & (beside <= _MOST_OF_IT * (end - start)[own])
    beside[(same < 0) | may_be_another] = 0
    return covered, twice + np.bincount(of[own], beside, count)


def _same_again(
    place: np.ndarray, launch: np.ndarray, node: np.ndarray, name: np.ndarray
) -> np.ndarray:
    """A number for pieces of one launch that are the same node, or kernel; -1 where unknown.

    Without nodes, kernels in a launch of several names are nodes of a graph: those of one name
    need not be the same.
    """
    launches = grouped_columns([place, launch])
    has_one_name = (launches.distinct(name) == 1)[launches.of]
    same = grouped_columns([place, launch, node, np.where(node >= 0, -1, name)]).of
    return np.where((node >= 0) | has_one_name, same, -1)


def _overlaps(group: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How much of each interval, in order of group and start, lies in earlier ones of its group."""
    if not len(start):
        return np.zeros(0)
    low = int(start.min())
    width = int(end.max()) - low + 1
    latest = np.maximum.accumulate(group * width + (end - low)) - group * width + low
    is_first = np.append(True, group[1:] != group[:-1])
    before = np.where(is_first, start, np.append(low, latest[:-1]))
    beside: np.ndarray = np.maximum(0, np.minimum(end, before) - start).astype(np.float64)
    return beside


def _launch_numbers(events: Table) -> np.ndarray:
    ids = events["correlation_id"]
    return np.where(ids >= 0, ids, -1 - np.arange(len(ids)))


# Do all executions of a program have the pieces that the program makes them run?

_PIECES_LISTED = 4


def pieces(evidence: Evidence) -> Law:
    """Whether executions on all devices and in all steps have equally many pieces.

    A step that lacks some is not used; where all do, no figure of device work is told.
    """
    check = "pieces"
    own = [losses for losses in evidence.losses if losses.pieces.expected]
    expected, missing = (sum(getattr(o.pieces, n) for o in own) for n in ("expected", "missing"))
    found = expected - missing
    lacking = [losses for losses in own if losses.pieces.devices]
    unseen = sum(losses.pieces.unseen for losses in evidence.losses)
    if unseen and not lacking:
        detail = (
            f"{format_count(unseen)} instructions at the beginning of a program left no trace in "
            "any execution: the record may begin within the step"
        )
        return Law(check, "warn", detail)
    if not expected:
        return Law(check, "unchecked", "no two executions of a program that is known")
    if not lacking:
        detail = f"executions of a program have equally many pieces, {format_count(found)} in all"
        if missing:
            detail += f", but for {format_count(missing)}"
        is_good = missing <= FEW * expected
        return Law(check, "ok" if is_good else "warn", detail, (), expected, found, "pieces")
    detail = (
        f"{format_count(missing)} of {format_count(expected)} pieces "
        f"({format_percent(missing / expected)}) that other executions of the same program have "
        f"are not in the record, of device {_devices(evidence, lacking)}"
    )
    is_lost = any(losses.pieces.in_all for losses in lacking)
    detail += ", in every step" if is_lost else ": steps that lack some are not used"
    breaks = (Need.DEVICE_TIMES,) if is_lost else ()
    verdict: Verdict = "fail" if is_lost else "warn"
    return Law(check, verdict, detail, breaks, expected, found, "pieces")


def _devices(evidence: Evidence, lacking: list[HostLosses]) -> str:
    many = len(evidence.hosts) > 1
    names = [
        f"{device} of {losses.host}" if many else str(device)
        for losses in lacking
        for device in losses.pieces.devices
    ]
    return ", ".join(names[:_PIECES_LISTED]) + (", …" if len(names) > _PIECES_LISTED else "")
