"""Question: which executions make up a training step, and which steps can be measured?

A step is cut from device work, never from the host's clock: with asynchronous dispatch the host
is ahead. Markers (StepTraceAnnotation) say which executions belong together where they agree
with the executions of the largest module; else every execution of that module is a step, with
the executions of those other modules that come once or more in every step. Where `moeprof
capture` counted the steps, its way of counting decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from moeprof.ingest.placing.companions import with_companions
from moeprof.ingest.placing.execution import Execution
from moeprof.ingest.placing.step_ways import Found, StepWays, in_host_order, step_ways
from moeprof.ingest.planes.record import Launch, Marker
from moeprof.ingest.sources.run_record import Counting

_WARM_UP = 2.0  # a leading step of more than this many medians still warms up
_ENDLESS = 10.0  # a last step of more than this many: nothing behind it bounds a wrong end
_STUMP = 0.5  # a step at either end of less than this many medians is not a whole one
_LEAST_LEFT = 0.98  # of the work of another device, where the record is damaged
_CUT = "cut by the end of the capture"
_TINY = 1e-3  # of all device time: whether a step has such a program says nothing of the rest
_ENOUGH = 3  # steps that must be left to call another one an outlier


@dataclass(frozen=True)
class Step:
    """A step of one host with the runs it consists of; ``reason`` says why it is not used."""

    step: int
    module: int
    start_ns: int
    end_ns: int
    runs: tuple[tuple[int, int], ...]
    reason: str = ""


class Cut(NamedTuple):
    """Steps in order of time, and how they were found.

    ``is_as_in_script`` says whether their numbers are those that the script or capture counts
    with; else they are places, from 0. ``doubt`` says what else a step might be, ``ways`` how many
    steps there are in every way in which the record tells them.
    """

    steps: list[Step]
    how: str
    is_as_in_script: bool = False
    doubt: str = ""
    ways: StepWays = StepWays()


def cut_steps(
    executions: Sequence[Execution],
    markers: Sequence[Marker],
    launches: Sequence[Launch],
    compiles_ns: Sequence[int] = (),
    counting: Counting | None = None,
) -> Cut:
    """Find the steps of one host; every step has a number of its own."""
    if not executions:
        return Cut([], "no step: no execution of a module can be told apart")
    main = largest_module(executions)
    found, owners = _best_markers(executions, main, markers, launches)
    is_fit = _markers_fit(executions, main, owners)
    if counting is not None and counting.annotation:
        counted = [marker for marker in markers if marker.name == counting.annotation]
        runs = {e.run_id for e in executions}
        counted_owners = {r: at for r, at in _owners(counted, launches).items() if r in runs}
        if counted_owners:
            found, owners, is_fit = counted, counted_owners, True
    cuts = []
    if not is_fit or _is_from_other_threads(markers, launches):
        cuts.append(_by_order(executions, main, markers, launches, compiles_ns, counting))
    if is_fit:
        cuts.append((_marked(executions, found, owners, compiles_ns, main), owners, found))
    doubt = "" if counting else _doubt(executions, main, found, owners)
    by_module = _by_module(executions, main, len(found), counting)._replace(doubt=doubt)
    cuts.append((by_module, {}, found))
    judged = [
        (cut._replace(steps=_without_odd_ends(_judged(cut.steps, executions))), own, theirs)
        for cut, own, theirs in filter(None, cuts)
    ]
    # a way that gives no step at all gives way to the next
    cut, own, theirs = next((one for one in judged if _usable(one[0])), judged[0])
    main_runs = [e.run_id for e in executions if e.module == main]
    with_work = sum(bool(step.runs) for step in cut.steps)
    ways = step_ways(main_runs, launches, counting, Found(theirs, own), with_work)
    return cut._replace(ways=ways if not cut.doubt else ways._replace(apart=""))


def _usable(cut: Cut) -> bool:
    return any(not step.reason for step in cut.steps)


def _is_from_other_threads(markers: Sequence[Marker], launches: Sequence[Launch]) -> bool:
    """Whether executions are known by calls of threads that run behind the annotated one."""
    annotated = {marker.line for marker in markers}
    return bool(annotated) and any(
        launch.line != -1 and launch.line not in annotated for launch in launches
    )


def _by_order(
    executions: Sequence[Execution],
    main: int,
    markers: Sequence[Marker],
    launches: Sequence[Launch],
    compiles_ns: Sequence[int],
    counting: Counting | None,
) -> tuple[Cut, dict[int, int], list[Marker]] | None:
    """Steps of the annotations, each with the main execution at its place; None if not certain."""
    own = with_companions(executions, main)
    mains = [next(e for e in mine if e.module == main) for mine in own]
    calls = {launch.run_id: launch.start_ns for launch in reversed(launches)}
    asked = counting.annotation if counting is not None else ""
    names = dict.fromkeys(marker.name for marker in markers)
    for name in sorted(names, key=lambda name: name != asked):
        mine = [marker for marker in markers if marker.name == name]
        ordered = in_host_order(
            [e.start_ns for e in mains], mine, [calls.get(e.run_id) for e in mains]
        )
        if ordered is None:
            continue
        numbers = [marker.step for marker in ordered]
        is_rising = numbers[0] >= 0 and all(a < b for a, b in pairwise(numbers))
        numbers = numbers if is_rising else list(range(len(own)))
        steps = [
            _compiled_or_not(_step(number, mine, main), marker, compiles_ns)
            for number, mine, marker in zip(numbers, own, ordered, strict=True)
        ]
        how = f"steps from {len(steps)} annotation(s) '{name}', each with the execution of the "
        how += "largest module at its place in the order"
        owners = {e.run_id: at for at, mine in enumerate(own) for e in mine}
        return Cut(_not_ahead(steps, own), how, is_rising), owners, list(ordered)
    return None


def largest_module(executions: Sequence[Execution]) -> int:
    """The module with the most device time."""
    busy: Counter[int] = Counter()
    for execution in executions:
        busy[execution.module] += execution.busy_ns
    return max(busy, key=lambda module: busy[module])


def _best_markers(
    executions: Sequence[Execution],
    main: int,
    markers: Sequence[Marker],
    launches: Sequence[Launch],
) -> tuple[list[Marker], dict[int, int]]:
    """Markers of one name, and what they own: a name that fits, with the most main runs."""
    runs = {e.run_id for e in executions if e.module == main}
    best: tuple[list[Marker], dict[int, int]] = ([], {})
    most = (False, -1)
    for name in dict.fromkeys(marker.name for marker in markers):
        mine = [marker for marker in markers if marker.name == name]
        owners = _owners(mine, launches)
        owned = (_markers_fit(executions, main, owners), len(runs & owners.keys()))
        if owned > most:
            best, most = (mine, owners), owned
    return best


def _owners(markers: Sequence[Marker], launches: Sequence[Launch]) -> dict[int, int]:
    """run id -> index of the marker in which the host launched it."""
    order = sorted(range(len(markers)), key=lambda i: markers[i].start_ns)
    starts = [markers[i].start_ns for i in order]
    found: dict[int, int] = {}
    for launch in launches:
        at = bisect_right(starts, launch.start_ns) - 1
        if at >= 0 and launch.start_ns <= markers[order[at]].end_ns:
            found[launch.run_id] = order[at]
    return found


def _markers_fit(executions: Sequence[Execution], main: int, owners: dict[int, int]) -> bool:
    """Most runs of the main module lie in markers, and not all of several in a single one."""
    runs = [e.run_id for e in executions if e.module == main]
    owned = Counter(owners[run] for run in runs if run in owners)
    return 2 * sum(owned.values()) > len(runs) and (len(owned) > 1 or len(runs) == 1)


def _doubt(
    executions: Sequence[Execution], main: int, markers: Sequence[Marker], owners: dict[int, int]
) -> str:
    """What speaks against a step per execution: a single annotation that holds most of them."""
    runs = [e.run_id for e in executions if e.module == main]
    owned = [owners[run] for run in runs if run in owners]
    if len(set(owned)) != 1 or 2 * len(owned) <= len(runs):
        return ""
    return (
        f"one annotation '{markers[owned[0]].name}' holds {len(owned)} executions of the largest "
        f"module: they are counted as {len(owned)} steps, but may be one"
    )


def _marked(
    executions: Sequence[Execution],
    markers: Sequence[Marker],
    owners: dict[int, int],
    compiles_ns: Sequence[int],
    main: int,
) -> Cut:
    mine: dict[int, list[Execution]] = defaultdict(list)
    for execution in executions:
        if execution.run_id in owners:
            mine[owners[execution.run_id]].append(execution)
    steps = []
    for index, marker in enumerate(markers):
        if mine[index]:
            step = _step(marker.step, mine[index], main)
            steps.append(_compiled_or_not(step, marker, compiles_ns))
        else:
            reason = "no device work in it"
            steps.append(Step(marker.step, -1, marker.start_ns, marker.end_ns, (), reason))
    # the host is ahead: a step without device work may begin before the work of an earlier one
    order = sorted(range(len(markers)), key=lambda at: markers[at].start_ns)
    numbers = [steps[at].step for at in order]
    steps.sort(key=lambda step: step.start_ns)
    how = f"steps from {len(steps)} annotation(s) '{markers[0].name}'"
    if numbers[0] >= 0 and all(a < b for a, b in pairwise(numbers)):
        return Cut(steps, how, is_as_in_script=True)
    how += ", numbered by their place: the annotations' own numbers do not rise"
    return Cut([replace(step, step=place) for place, step in enumerate(steps)], how)


def _compiled_or_not(step: Step, marker: Marker, compiles_ns: Sequence[int]) -> Step:
    is_compiled = any(marker.start_ns <= at <= marker.end_ns for at in compiles_ns)
    return _with(step, "compiled in it" if is_compiled else "")


def _by_module(
    executions: Sequence[Execution], main: int, markers: int, counting: Counting | None
) -> Cut:
    runs = with_companions(executions, main)
    first = _first_number(len(runs), counting)
    steps = [_step((first or 0) + place, mine, main) for place, mine in enumerate(runs)]
    steps = _not_ahead(steps, runs)
    how = f"steps from executions of the largest module (annotations found: {markers}"
    how += ", not used)" if markers else ")"
    return Cut(steps, how, is_as_in_script=first is not None)


def _first_number(steps: int, counting: Counting | None) -> int | None:
    """What capture calls the first step; None where it counted other steps than are found."""
    if counting is None or counting.first_step is None or counting.last_step is None:
        return None
    is_same = counting.last_step - counting.first_step + 1 == steps
    return counting.first_step if is_same else None


def _not_ahead(steps: list[Step], runs: list[list[Execution]]) -> list[Step]:
    """The steps without the time by which a preparation ran ahead, in the step before."""
    kept = steps[:1]
    for step, mine in zip(steps[1:], runs[1:], strict=True):
        begin = min(e.start_ns for e in mine if e.module == step.module)
        kept.append(replace(step, start_ns=min(begin, max(step.start_ns, kept[-1].end_ns))))
    return kept


def _step(number: int, executions: list[Execution], main: int) -> Step:
    return Step(
        step=number,
        module=main,
        start_ns=min(e.start_ns for e in executions),
        end_ns=max(e.end_ns for e in executions),
        runs=tuple((e.module, e.run_id) for e in executions),
    )


def _judged(steps: list[Step], executions: Sequence[Execution]) -> list[Step]:
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
        judged.append(_with(step, reason))
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
        steps = [_with(s, s.reason or told) if n == at else s for n, s in enumerate(steps)]
    return steps


def _tiny_modules(executions: Sequence[Execution]) -> set[int]:
    """Modules of next to no device time: a copy of a batch launched before the capture began."""
    busy: Counter[int] = Counter()
    for execution in executions:
        busy[execution.module] += execution.busy_ns
    return {module for module, ns in busy.items() if ns < _TINY * busy.total()}


def without_unseen(steps: list[Step], known_until_ns: int | None) -> list[Step]:
    """The steps with those not used that a record, which ends at that time, cannot tell of."""
    if known_until_ns is None:
        return steps
    last = max((s.end_ns for s in steps if s.runs), default=known_until_ns)
    return [
        _with(step, "not captured: the record ends before it")
        if not step.runs and step.start_ns >= last
        else _with(step, "not captured whole: the record ends in it")
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
        found.append(_with(step, told) if is_short else step)
    return found


def _cut_at_an_end(steps: list[Step], sizes: list[int], at: int, *, is_first: bool) -> str:
    """Why the first or last step is not whole: it has fewer ops than any other; empty if it is."""
    others = [size for i, size in enumerate(sizes) if i != at and steps[i].runs]
    if not others or sizes[at] >= min(others):
        return ""
    where = "began before the capture" if is_first else _CUT
    return f"{where}: {sizes[at]} of {min(others)} ops"


def _without_odd_ends(steps: list[Step]) -> list[Step]:
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
            steps = [_with(s, reason) if s is end else s for s in steps]
            if is_last:
                break  # the end of the capture cuts one step
    return steps


def _with(step: Step, reason: str) -> Step:
    return replace(step, reason=reason)
