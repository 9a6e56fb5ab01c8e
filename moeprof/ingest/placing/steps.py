"""Question: which executions make up a step, which can be measured, what else might a step be?

A step is cut from device work, never from the host's clock: with asynchronous dispatch the host
is ahead. Markers (StepTraceAnnotation) say which executions belong together where they agree
with the executions of the largest module; else every execution of that module is a step, with
the executions of those other modules that come once or more in every step. Where `moeprof
capture` counted the steps, its way of counting decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from moeprof.ingest.placing.annotated_steps import (
    annotated_module,
    are_from_other_threads,
    best_markers,
    by_order,
    marked,
    markers_fit,
    owners_of,
    with_companions,
)
from moeprof.ingest.placing.step import (
    COMPARABLE,
    Cut,
    Execution,
    Found,
    Step,
    largest_module,
    made_of,
    not_ahead,
    step_ways,
)
from moeprof.ingest.placing.whole_steps import without_cut, without_odd_ends
from moeprof.ingest.planes.record import Launch, Marker
from moeprof.ingest.sources.run_record import Counting
from moeprof.units import format_percent


def cut_steps(
    executions: Sequence[Execution],
    markers: Sequence[Marker],
    launches: Sequence[Launch],
    compiles_ns: Sequence[int] = (),
    counting: Counting | None = None,
    name_of: Callable[[int], str] = str,
) -> Cut:
    """Find the steps of one host; every step has a number of its own.

    `name_of` gives the name of a program.
    """
    if not executions:
        return Cut([], "no step: no execution of a module can be told apart")
    main = largest_module(executions)
    found, owners = best_markers(executions, main, markers, launches)
    is_fit = markers_fit(executions, main, owners)
    if not is_fit and (other := annotated_module(executions, main, markers, launches)) != main:
        main = other
        found, owners = best_markers(executions, main, markers, launches)
        is_fit = True
    if counting is not None and counting.annotation:
        counted = [marker for marker in markers if marker.name == counting.annotation]
        runs = {e.run_id for e in executions}
        counted_owners = {r: at for r, at in owners_of(counted, launches).items() if r in runs}
        if counted_owners:
            found, owners, is_fit = counted, counted_owners, True
    cuts = []
    if not is_fit or are_from_other_threads(markers, launches):
        cuts.append(by_order(executions, main, markers, launches, compiles_ns, counting))
    if is_fit:
        cuts.append((marked(executions, found, owners, compiles_ns, main), owners, found))
    by_module = _by_module(executions, main, len(found), counting)
    if counting is None:
        doubt = doubts(executions, main, by_module.steps, found, owners, name_of)
        by_module = by_module._replace(doubt=doubt)
    cuts.append((by_module, {}, found))
    judged = [
        (cut._replace(steps=without_odd_ends(without_cut(cut.steps, executions))), own, theirs)
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


def _by_module(
    executions: Sequence[Execution], main: int, markers: int, counting: Counting | None
) -> Cut:
    runs = with_companions(executions, main)
    first = _first_number(len(runs), counting)
    steps = [made_of((first or 0) + place, mine, main) for place, mine in enumerate(runs)]
    steps = not_ahead(steps, runs)
    how = f"steps from executions of the largest module (annotations found: {markers}"
    how += ", not used)" if markers else ")"
    return Cut(steps, how, is_as_in_script=first is not None)


def _first_number(steps: int, counting: Counting | None) -> int | None:
    """What capture calls the first step; None where it counted other steps than are found."""
    if counting is None or counting.first_step is None or counting.last_step is None:
        return None
    is_same = counting.last_step - counting.first_step + 1 == steps
    return counting.first_step if is_same else None


# What else a step might be, where executions of the largest program are taken for the steps.

_ROUNDS = 2
"""Rounds of equally many steps that must be seen before they count as regular."""


def doubts(
    executions: Sequence[Execution],
    main: int,
    steps: Sequence[Step],
    markers: Sequence[Marker],
    owners: Mapping[int, int],
    name_of: Callable[[int], str],
) -> str:
    """What speaks against a step per execution of the largest program; empty for nothing."""
    found = [_one_annotation(executions, main, markers, owners)]
    found += _other_programs(executions, main, steps, name_of)
    return "; ".join(filter(None, found))


def _one_annotation(
    executions: Sequence[Execution], main: int, markers: Sequence[Marker], owners: Mapping[int, int]
) -> str:
    """A single annotation that holds most of the executions."""
    runs = [e.run_id for e in executions if e.module == main]
    owned = [owners[run] for run in runs if run in owners]
    if len(set(owned)) != 1 or 2 * len(owned) <= len(runs):
        return ""
    return (
        f"one annotation '{markers[owned[0]].name}' holds {len(owned)} executions of the largest "
        f"module: they are counted as {len(owned)} steps, but may be one"
    )


def _other_programs(
    executions: Sequence[Execution],
    main: int,
    steps: Sequence[Step],
    name_of: Callable[[int], str],
) -> list[str]:
    """Programs of no step that run several times, for as long as a training step might."""
    placed = {run for step in steps for run in step.runs}
    mains = [e for e in executions if e.module == main]
    starts = sorted(e.start_ns for e in mains)
    main_ns = sum(e.busy_ns for e in mains)
    others: dict[int, list[Execution]] = defaultdict(list)
    for execution in executions:
        if (execution.module, execution.run_id) not in placed:
            others[execution.module].append(execution)
    found = []
    for module, own in others.items():
        share = sum(e.busy_ns for e in own) / main_ns if main_ns else 0.0
        is_one = len(own) > 1 and share >= COMPARABLE
        if is_one and not _is_every_so_many(sorted(e.start_ns for e in own), starts):
            found.append(
                f"{name_of(module)} runs {len(own)} times in no step, for {format_percent(share)} "
                f"of the device time of {name_of(main)}, whose {len(mains)} executions are counted "
                "as the steps: annotate the steps if it is the step"
            )
    return found


def _is_every_so_many(own_ns: Sequence[int], steps_ns: Sequence[int]) -> bool:
    """Whether a program comes behind every so many steps, as an update behind micro-steps does.

    The capture may cut the first round and the last one.
    """
    places = [0, *(bisect_left(steps_ns, at_ns) for at_ns in own_ns), len(steps_ns)]
    rounds = [behind - before for before, behind in pairwise(places)]
    most = max(rounds)
    return set(rounds[1:-1]) == {most} and rounds.count(most) >= _ROUNDS
