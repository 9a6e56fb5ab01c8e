"""Which steps are whole: those that the capture cut, or that are unlike the others, are not.

Every step that is not used has the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table, isin
from moeprof.ingest.placing.step import Execution, Step, busy_by_module, with_reason
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.units import format_count

_WARM_UP, _STUMP = 2.0, 0.5
"""Medians of the other steps between which a step at an end is one of them. One of more than twice
their length did other work beside its own (compilation, autotuning, allocation); one of less than
half of it lacks most of its own. What data may change, as the load of experts, is a part of a step.
Lengths are asked where counts of ops show nothing, at the ends alone and while enough steps are
left; a long or short step in the middle is the run's own."""
_ENDLESS = 10.0
"""Medians above which a last step is not believed. No work behind it bounds a wrong end, but it may
well be long, as with a checkpoint or a wait for a late host, which take a few steps' time: so only
another order of length counts."""
_LEAST_LEFT = 0.98
"""Of the work of another device, where the record is damaged."""
_CUT = "cut by the end of the capture"
_TINY = 1e-3
"""Of all device time, what the smallest programs have together whose ops are not compared: some,
as the copy of a batch, run ahead, so that the capture lacks one. A step that is used without them
lacks as much of its own time on average, which is less than its figures show."""
_ENOUGH = 3  # steps that must be left to call another one an outlier


def without_cut(steps: list[Step], executions: Sequence[Execution]) -> list[Step]:
    """Give a reason to every step that the capture cut."""
    ops = {(e.module, e.run_id): e.ops for e in executions}
    devices = {(e.module, e.run_id): e.devices for e in executions}
    tiny = _tiny_modules(executions)
    sizes = [sum(ops[run] for run in step.runs if run[0] not in tiny) for step in steps]
    widths = [max((devices[run] for run in step.runs), default=0) for step in steps]
    widest = max(widths, default=0)
    at_work = [at for at, step in enumerate(steps) if step.runs]
    # the host may be ahead of the device: the last annotations then hold no work
    first, last = (at_work[0], at_work[-1]) if at_work else (-1, -1)
    judged = []
    for at, step in enumerate(steps):
        reason = step.reason
        if not reason and widths[at] < widest:
            reason = f"work of {widths[at]} of {widest} devices"
        if not reason and at in (first, last):
            reason = _cut_at_an_end(steps, sizes, at, is_first=at == first)
            if reason and _is_whole_but_for_loops(steps, executions, at, is_first=at == first):
                reason = ""
        judged.append(with_reason(step, reason))
    uneven = {(e.module, e.run_id) for e in executions if e.least_ops < e.most_ops}
    return _cut_on_some_devices(judged, sizes, at_work, uneven)


def _cut_on_some_devices(
    steps: list[Step], sizes: list[int], at_work: list[int], uneven: set[tuple[int, int]]
) -> list[Step]:
    """The steps without those that the end of the capture cut on the devices that were behind.

    They come right before the last one, which is cut too. A program whose devices differ in every
    step tells nothing.
    """
    if len(at_work) < _ENOUGH or not steps[at_work[-1]].reason.startswith(_CUT):
        return steps
    for place in range(len(at_work) - 2, 0, -1):
        at, before = at_work[place], at_work[:place]
        others = [run for other in before for run in steps[other].runs]
        fewer = sizes[at] < min(sizes[other] for other in before)
        if not fewer or not uneven.intersection(steps[at].runs) or uneven.intersection(others):
            break
        told = f"{_CUT}: {sizes[at]} of {min(sizes[other] for other in before)} ops"
        steps = [with_reason(s, s.reason or told) if n == at else s for n, s in enumerate(steps)]
    return steps


def _tiny_modules(executions: Sequence[Execution]) -> set[int]:
    """The smallest modules, of next to no device time together."""
    busy = busy_by_module(executions)
    most, found, passed = _TINY * busy.total(), set(), 0
    for module, ns in sorted(busy.items(), key=lambda item: item[1]):
        passed += ns
        if passed >= most:
            break
        found.add(module)
    return found


def _cut_at_an_end(steps: list[Step], sizes: list[int], at: int, *, is_first: bool) -> str:
    """Why the first or last step is not whole: it has fewer ops than any other; empty if it is."""
    others = [size for i, size in enumerate(sizes) if i != at and steps[i].runs]
    if not others or sizes[at] >= min(others):
        return ""
    where = "began before the capture" if is_first else _CUT
    return f"{where}: {sizes[at]} of {min(others)} ops"


def _is_whole_but_for_loops(
    steps: list[Step], executions: Sequence[Execution], at: int, *, is_first: bool
) -> bool:
    """Whether the first or last step lacks nothing but rounds of loops that data may decide.

    The capture cuts off what comes first or last. So it cut no round where that is no part of such
    a loop and is there, as in the other steps.
    """
    of_run = {(e.module, e.run_id): e for e in executions}
    mine = [of_run[run] for run in steps[at].runs]
    if is_first:
        is_loose = min(mine, key=lambda e: e.start_ns).begins_loose
    else:
        is_loose = max(mine, key=lambda e: e.end_ns).ends_loose
    tiny = _tiny_modules(executions)
    fixed = [
        sum(of_run[run].ops - of_run[run].loose_ops for run in step.runs if run[0] not in tiny)
        for step in steps
    ]
    others = [size for i, size in enumerate(fixed) if i != at and steps[i].runs]
    return not is_loose and fixed[at] >= min(others)


def without_odd_ends(steps: list[Step]) -> list[Step]:
    """Drop a last step that is cut or never ends, then leading ones.

    Those that warm up are long, those that ramp up short.
    """
    for is_last in (True, False):
        used = [s for s in steps if not s.reason]
        while len(used) > _ENOUGH:
            end = used.pop() if is_last else used.pop(0)
            rest = median(s.end_ns - s.start_ns for s in used)
            share = (end.end_ns - end.start_ns) / rest if rest else 1.0
            if _STUMP <= share <= (_ENDLESS if is_last else _WARM_UP):
                break
            what = "warm-up" if share > _WARM_UP else "ramp-up"
            if is_last:
                what = "end not seen" if share > _ENDLESS else _CUT
            told = f"{share:.1f}" if share > 1 else f"{share:.2f}"
            reason = (
                f"{what}: {told} × the median of the steps {'before' if is_last else 'after'} it"
            )
            steps = [with_reason(s, reason) if s is end else s for s in steps]
            if is_last:
                break  # the end of the capture cuts one step
    return steps


def without_unseen(steps: list[Step], known_until_ns: int | None) -> list[Step]:
    """The steps with those not used that a record, which ends at that time, cannot tell of."""
    if known_until_ns is None:
        return steps
    last = max((s.end_ns for s in steps if s.runs), default=known_until_ns)
    return [
        with_reason(step, "not captured: the record ends before it")
        if not step.runs and step.start_ns >= last
        else with_reason(step, "not captured whole: the record ends in it")
        if step.runs and step.end_ns == last
        else step
        for step in steps
    ]


def without_half_lost(steps: list[Step], pieces: Mapping[int, Sequence[int]]) -> list[Step]:
    """The steps of a damaged record with those not used in which a device lacks work.

    `pieces` counts those of each device in a step. All devices run one program: what one of them
    lacks is in the part that is lost.
    """
    found = []
    for step in steps:
        mine = pieces.get(step.step, (0,))
        is_short = min(mine) < _LEAST_LEFT * max(mine) and not step.reason
        told = f"{min(mine)} of {max(mine)} pieces left on a device"
        found.append(with_reason(step, told) if is_short else step)
    return found


# Whether the only step of a capture is whole, where no other one tells how much belongs to it.
#
# A capture that a signal ends may hold the beginning of a step alone. The schedule of its program
# tells: what a device ran is its front, and instructions of kinds that were seen without
# exception up to there are missing behind it.

_LEAST_MISSING = 2
_LEAST_SHARE = 0.01
"""Of the instructions that leave a trace: where fewer are missing, the step is whole."""


def without_cut_short(steps: list[Step], work: Table, step: Int64s, ops: Table) -> list[Step]:
    """The steps; the only one that could be used is not, if the end of the capture cut it.

    ``work`` has device, module, instruction (row of ``ops``) and start_ns, ``step`` the step of
    each of its rows.
    """
    with_work = [one for one in steps if one.runs]
    if len(with_work) != 1 or with_work[0].reason:
        return steps
    only = with_work[0]
    mine = work[(step == only.step) & (work["module"] == only.module)]
    missing = max(_missing(mine, ops, ops["module"] == only.module), default=(0, 0))
    lost, expected = missing
    if lost < max(_LEAST_MISSING, _LEAST_SHARE * expected):
        return steps
    told = (
        f"cut by the end of the capture: {format_count(expected - lost)} of "
        f"{format_count(expected)} instructions of its program"
    )
    return [replace(one, reason=told) if one is only else one for one in steps]


def _missing(work: Table, ops: Table, is_of_program: Flags) -> Iterator[tuple[int, int]]:
    """For each device how many instructions are missing, and how many there should be."""
    entry = _entry(ops, is_of_program)
    place, opcode = ops["schedule"][entry], ops["opcode"][entry]
    for rows in grouped(work, "device").rows():
        mine = work[rows]
        is_seen = np.isin(entry, mine["instruction"])
        if not is_seen.any() or _has_unnamed_end(mine, entry[is_seen]):
            continue
        is_front = place <= place[is_seen].max()
        always = set(opcode[is_front]) - set(opcode[is_front & ~is_seen])
        is_always = isin(opcode, always)
        lost = int((is_always & ~is_front).sum())
        yield lost, int(is_always.sum())


def _has_unnamed_end(mine: Table, seen: Int64s) -> bool:
    """Whether the last pieces have no name: they may be what else is missing."""
    last = int(mine["start_ns"][np.isin(mine["instruction"], seen)].max())
    return bool(((mine["instruction"] < 0) & (mine["start_ns"] > last)).any())


def _entry(ops: Table, is_of_program: Flags) -> Int64s:
    """The instructions that run once each, in their order: those of the entry computation."""
    called = {name for text in ops["called"][is_of_program].tolist() for name in text.split()}
    runs_once = is_of_program & (ops["schedule"] >= 0) & ~isin(ops["computation"], called)
    sizes = Counter(sorted(ops["computation"][runs_once].tolist()))  # of equals the first by name
    largest = max(sizes, key=sizes.__getitem__, default="")
    return np.flatnonzero(runs_once & (ops["computation"] == largest))
