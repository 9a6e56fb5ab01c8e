"""Question: which executions make up a training step, and which steps can be measured?

A step is cut from device work, never from the host's clock: with asynchronous dispatch the host
is ahead. Markers (StepTraceAnnotation) say which executions belong together where they agree
with the executions of the largest module; else every execution of that module is a step, with
the executions of those other modules that come once or more in every step. Where `moeprof
capture` counted the steps, its way of counting decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moeprof.ingest.placing.annotated_steps import (
    annotated_module,
    are_from_other_threads,
    best_markers,
    by_order,
    marked,
    markers_fit,
    owners_of,
)
from moeprof.ingest.placing.companions import with_companions
from moeprof.ingest.placing.execution import Execution, largest_module
from moeprof.ingest.placing.step import Cut, made_of, not_ahead
from moeprof.ingest.placing.step_doubts import doubts
from moeprof.ingest.placing.step_ways import Found, step_ways
from moeprof.ingest.placing.whole_steps import without_cut, without_odd_ends
from moeprof.ingest.planes.record import Launch, Marker
from moeprof.ingest.sources.run_record import Counting


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
