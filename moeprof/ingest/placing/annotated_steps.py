"""Steps of the script's annotations: which executions, of which programs, belong to each.

An execution belongs to the annotation in which the host launched it. Where no launch tells that,
the order of the annotations and of the executions does, if it is certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from moeprof.ingest.placing.step import (
    COMPARABLE,
    Cut,
    Execution,
    Step,
    busy_by_module,
    in_host_order,
    is_window_of,
    largest_module,
    made_of,
    not_ahead,
    with_reason,
)
from moeprof.ingest.planes.record import Launch, Marker
from moeprof.ingest.sources.run_record import Counting


def best_markers(
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
        owners = owners_of(mine, launches)
        owned = (markers_fit(executions, main, owners), len(runs & owners.keys()))
        if owned > most:
            best, most = (mine, owners), owned
    return best


def annotated_module(
    executions: Sequence[Execution],
    main: int,
    markers: Sequence[Marker],
    launches: Sequence[Launch],
) -> int:
    """The largest module in the markers, where they fit it and its time is comparable; else `main`.

    An evaluation without annotations may take longer than the steps that are annotated.
    """
    owned = owners_of(markers, launches).keys()
    inside = [e for e in executions if e.run_id in owned]
    if not inside:
        return main
    other, busy = largest_module(inside), busy_by_module(executions)
    if busy[other] < COMPARABLE * busy[main]:
        return main
    _, owners = best_markers(executions, other, markers, launches)
    return other if markers_fit(executions, other, owners) else main


def owners_of(markers: Sequence[Marker], launches: Sequence[Launch]) -> dict[int, int]:
    """run id -> index of the marker in which the host launched it."""
    order = sorted(range(len(markers)), key=lambda i: markers[i].start_ns)
    starts = [markers[i].start_ns for i in order]
    found: dict[int, int] = {}
    for launch in launches:
        at = bisect_right(starts, launch.start_ns) - 1
        if at >= 0 and launch.start_ns <= markers[order[at]].end_ns:
            found[launch.run_id] = order[at]
    return found


def markers_fit(executions: Sequence[Execution], main: int, owners: dict[int, int]) -> bool:
    """Most runs of the main module lie in markers, and not all of several in a single one."""
    runs = [e.run_id for e in executions if e.module == main]
    owned = Counter(owners[run] for run in runs if run in owners)
    return 2 * sum(owned.values()) > len(runs) and (len(owned) > 1 or len(runs) == 1)


def are_from_other_threads(markers: Sequence[Marker], launches: Sequence[Launch]) -> bool:
    """Whether executions are known by calls of threads that run behind the annotated one."""
    annotated = {marker.line for marker in markers}
    return bool(annotated) and any(
        launch.line != -1 and launch.line not in annotated for launch in launches
    )


def marked(
    executions: Sequence[Execution],
    markers: Sequence[Marker],
    owners: dict[int, int],
    compiles_ns: Sequence[int],
    main: int,
) -> Cut:
    """A step of each annotation, by the executions that it owns."""
    mine: dict[int, list[Execution]] = defaultdict(list)
    for execution in executions:
        if execution.run_id in owners:
            mine[owners[execution.run_id]].append(execution)
    steps = []
    for index, marker in enumerate(markers):
        if mine[index]:
            step = made_of(marker.step, mine[index], main)
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


def by_order(
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
        called = [calls.get(e.run_id) for e in mains]
        ordered = in_host_order([e.start_ns for e in mains], mine, called)
        is_known = any(call is not None for call in called)
        if ordered is None or not (is_known or is_window_of(ordered, counting)):
            continue
        numbers = [marker.step for marker in ordered]
        is_rising = numbers[0] >= 0 and all(a < b for a, b in pairwise(numbers))
        numbers = numbers if is_rising else list(range(len(own)))
        steps = [
            _compiled_or_not(made_of(number, mine, main), marker, compiles_ns)
            for number, mine, marker in zip(numbers, own, ordered, strict=True)
        ]
        how = f"steps from {len(steps)} annotation(s) '{name}', each with the execution of the "
        how += "largest module at its place in the order"
        owners = {e.run_id: at for at, mine in enumerate(own) for e in mine}
        return Cut(not_ahead(steps, own), how, is_rising), owners, list(ordered)
    return None


def _compiled_or_not(step: Step, marker: Marker, compiles_ns: Sequence[int]) -> Step:
    is_compiled = any(marker.start_ns <= at <= marker.end_ns for at in compiles_ns)
    return with_reason(step, "compiled in it" if is_compiled else "")


# Programs that run in every step beside the largest: what prepares it, and what follows up.


def with_companions(executions: Sequence[Execution], main: int) -> list[list[Execution]]:
    """Each execution of the main module with those of the modules that every step needs.

    Such a module comes at least once between any two main executions. Where it also comes before
    the first and never after the last, it prepares a step (as the copy of a batch does, which may
    run while the step before it still does); else what it is nearer to tells. Where that is the
    step before, it follows up on it (as an update does). So does one that is about as near to both,
    as on a busy machine, if it comes after the last and never before the first. The capture may cut
    what comes before the first execution and after the last, so those steps may lack one.
    """
    ordered = sorted(executions, key=lambda e: e.start_ns)
    last_end: dict[int, int] = {}  # those that start at once, on several devices, are one step
    for e in (e for e in ordered if e.module == main):
        last_end[e.start_ns] = max(e.end_ns, last_end.get(e.start_ns, e.end_ns))
    starts, ends = list(last_end), list(last_end.values())
    gaps: list[list[Execution]] = [[] for _ in range(len(starts) + 1)]  # before, between, after
    for execution in ordered:
        gaps[bisect_right(starts, execution.start_ns)].append(execution)
    modules = [{e.module for e in gap} for gap in gaps]
    between = set.intersection(*(modules[1:-1] or modules[1:]))
    preparing = (between & modules[0]) - modules[-1] if len(starts) > 1 else set()
    behind = (between & modules[-1]) - modules[0]
    for module in between - preparing - {main}:
        least = _CLEARLY if module in behind else 1
        if _is_nearer_to_the_next(module, gaps[1:-1], ends, starts, least):
            preparing.add(module)
    return [
        sorted(
            [e for e in before if e.module in preparing]
            + [e for e in own if e.module in between - preparing],
            key=lambda e: e.start_ns,
        )
        for before, own in pairwise(gaps)
    ]


_CLEARLY = 3.0
"""How much nearer to the next step a program must be to prepare it where the ends of the record say
that it follows up. A copy that prepares runs some µs before its step and ms behind the one before;
an update that a busy machine runs late has comparable times on both sides."""


def _is_nearer_to_the_next(
    module: int,
    gaps: Sequence[Sequence[Execution]],
    ends: Sequence[int],
    starts: Sequence[int],
    times: float,
) -> bool:
    """Whether a module in the gaps between main executions mostly runs just before the next.

    That is where it is ``times`` farther from the one before. `ends` and `starts` are those of the
    main executions, the first of which is before all gaps.
    """
    votes = 0
    for gap, end_ns, start_ns in zip(gaps, ends, starts[1:], strict=False):
        own = [e for e in gap if e.module == module]
        behind = min(e.start_ns for e in own) - end_ns
        before = start_ns - max(e.end_ns for e in own)  # negative where it runs into the next
        votes += 1 if before * (times if before > 0 else 1) < behind else -1
    return votes > 0
