"""A step of one host: the executions that it consists of, and how steps were found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from moeprof.ingest.placing.execution import Execution
from moeprof.ingest.placing.step_ways import StepWays


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
