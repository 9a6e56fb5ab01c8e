"""A step of one host: its executions, how steps were found, and whether all ways agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from moeprof.ingest.planes.record import Launch, Marker
from moeprof.ingest.sources.run_record import Counting

# Ways in which a host tells its steps, and whether they agree.
#
# Annotations, executions of the largest program, their launches and the count of `moeprof
# capture` are recorded apart. Each may lack some of the steps; where they differ, the difference
# has a reason that is told, or a step is missing.


class StepWays(NamedTuple):
    """How many steps each way gives, which were found, and why not all ways agree.

    ``counts`` has the ways that the host's record allows, ``expected`` is how many steps there
    should be; ``apart`` is empty where they agree.
    """

    counts: tuple[tuple[str, int], ...] = ()
    steps: int = 0
    apart: str = ""
    expected: int = 0


class Found(NamedTuple):
    """What steps were made of: the annotations, and the one of each execution (by run id)."""

    markers: Sequence[Marker]
    owners: Mapping[int, int]


def step_ways(
    runs: Sequence[int],
    launches: Sequence[Launch],
    counting: Counting | None,
    found: Found,
    steps: int,
) -> StepWays:
    """Compare the ways. `runs` are the run ids of the largest program, `steps` those with work.

    A step may have several executions, as with gradient accumulation. So capture's count tells how
    many steps there should be, else the annotations of which steps were made, without those that
    have no work as the host was ahead; executions do where they are the steps.
    """
    counts: list[tuple[str, int]] = []
    name = found.markers[0].name if found.markers else ""
    if name:
        counts.append((f"annotations '{name}'", len(found.markers)))
    counts.append(("executions of the largest program", len(runs)))
    if launched := len({launch.run_id for launch in launches} & set(runs)):
        counts.append(("launches of it", launched))
    counted = _counted(counting)
    if counted:
        counts.append(("steps that capture counted", counted))
    apart = [
        _not_as_asked(counting, found),
        _left_over(runs, found),
        f"capture counted {counted} steps, {steps} have device work" if steps < counted else "",
        f"capture counted {counted} steps, {steps} are found" if 0 < counted < steps else "",
    ]
    told = "; ".join(filter(None, apart))
    expected = counted or (len(found.markers) if told else steps)
    return StepWays(tuple(counts), steps, told, expected)


def _counted(counting: Counting | None) -> int:
    """How many steps capture counted in the window; 0 where that is not known."""
    if counting is None or counting.first_step is None or counting.last_step is None:
        return 0
    return max(counting.last_step - counting.first_step + 1, 0)


def _not_as_asked(counting: Counting | None, found: Found) -> str:
    asked = counting.annotation if counting is not None else ""
    if not asked or (found.owners and found.markers[0].name == asked):
        return ""
    return (
        f"capture counted by the annotation '{asked}', with which no execution can be joined: "
        "steps are told in another way"
    )


def _left_over(runs: Sequence[int], found: Found) -> str:
    """Annotations without work beside executions without annotation: they cannot both be right."""
    if not found.markers:
        return ""
    name = found.markers[0].name
    owned = Counter(found.owners[run] for run in runs if run in found.owners)
    strange, empty = len(runs) - owned.total(), len(found.markers) - len(set(found.owners.values()))
    if not owned and len(found.markers) > 1:
        return (
            f"{len(found.markers)} annotations '{name}' and {len(runs)} executions of the largest "
            "program cannot be joined: the executions are the steps"
        )
    if strange and empty:
        return (
            f"{empty} of {len(found.markers)} annotations '{name}' have no device work, while "
            f"{strange} of {len(runs)} executions of the largest program lie in none"
        )
    return ""


def in_host_order(
    starts_ns: Sequence[int], markers: Sequence[Marker], launches_ns: Sequence[int | None]
) -> Sequence[Marker] | None:
    """The annotation of each execution by their order, where that is certain; else None.

    `starts_ns` are the starts of the executions in order, `launches_ns` their calls where known.
    The host annotates and launches in one order, and the device runs in that order. So the k-th
    execution is of the k-th annotation if there are equally many, and if none of them is called or
    begins before its annotation does.

    Where no call is known that may still be wrong by one: a capture that opens inside a step lacks
    the annotation of that step, and with the host ahead it lacks the work of the last one as well.
    Then `is_window_of` must say that the annotations are those of capture's window.
    """
    ordered = sorted(markers, key=lambda marker: marker.start_ns)
    if not ordered or len(ordered) != len(starts_ns):
        return None
    for start_ns, call_ns, marker in zip(starts_ns, launches_ns, ordered, strict=True):
        earliest_ns = start_ns if call_ns is None else min(start_ns, call_ns)
        if earliest_ns < marker.start_ns:
            return None
    return ordered


def is_window_of(markers: Sequence[Marker], counting: Counting | None) -> bool:
    """Whether annotations, in order, are those of the window in which capture counted steps.

    Capture opens its window right before an annotation, once the devices have run all that was
    launched before. So the first execution in the profile is that of the first annotation.
    """
    if counting is None or counting.first_step is None:
        return False
    window = (counting.annotation, counting.first_step, counting.last_step)
    return window == (markers[0].name, markers[0].step, markers[-1].step)


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


def made_of(number: int, executions: list[Execution], main: int) -> Step:
    """A step of these executions, `main` being the program that makes it one."""
    return Step(
        step=number,
        module=main,
        start_ns=min(e.start_ns for e in executions),
        end_ns=max(e.end_ns for e in executions),
        runs=tuple((e.module, e.run_id) for e in executions),
    )


def not_ahead(steps: list[Step], runs: list[list[Execution]]) -> list[Step]:
    """The steps without the time by which a preparation ran ahead, in the step before."""
    kept = steps[:1]
    for step, mine in zip(steps[1:], runs[1:], strict=True):
        begin = min(e.start_ns for e in mine if e.module == step.module)
        kept.append(replace(step, start_ns=min(begin, max(step.start_ns, kept[-1].end_ns))))
    return kept


def with_reason(step: Step, reason: str) -> Step:
    """The step with the reason why it is not used."""
    return replace(step, reason=reason)


# One execution of a program on the devices of a host, from which steps are made.

COMPARABLE = 0.25
"""Of the largest program's device time. A forward pass takes a third of what a training step of the
same batch does, so that a few batches of evaluation more or less decide which of the two is the
largest. Below a quarter a program is small beside the steps by either reading, and device time
outside of the steps names it."""


@dataclass(frozen=True)
class Execution:
    """One execution of a module over all devices of a host.

    ``least_ops`` and ``most_ops`` are those of the devices with the fewest and the most.
    ``loose_ops`` are those in loops of unknown rounds and in branches; ``begins_loose`` and
    ``ends_loose`` count the devices whose first or last is such a one.
    """

    module: int
    run_id: int
    start_ns: int
    end_ns: int
    busy_ns: int
    ops: int
    devices: int
    least_ops: int = 0
    most_ops: int = 0
    loose_ops: int = 0
    begins_loose: int = 0
    ends_loose: int = 0


def busy_by_module(executions: Sequence[Execution]) -> Counter[int]:
    """Device time of each module, in ns."""
    busy: Counter[int] = Counter()
    for execution in executions:
        busy[execution.module] += execution.busy_ns
    return busy


def largest_module(executions: Sequence[Execution]) -> int:
    """The module with the most device time."""
    busy = busy_by_module(executions)
    return max(busy, key=lambda module: busy[module])
