"""Which intervals of two runs can be compared, as the same programs run in them.

A program that comes once in several steps, at equal distances, is compared over whole rounds. Any
other that only a minority of intervals has, as an evaluation or a checkpoint, is left out with its
interval. Both are decided for the two runs together: what one leaves out the other does as well.
Copies and memory sets are no programs, however much they differ: they are of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.outside import like, other_programs, period, steps_in_a_row
from moeprof.tables.trace import Trace
from moeprof.units import format_count

_WORTH = 0.01
"""Share of the median interval from which on other work tells an interval from its like: gates
ask for changes of about that size."""
_MANY = 2.0
"""A program is in an interval where it takes above this many times what it takes in all of them."""
_MINORITY = 0.5
"""Share of the intervals up to which a program is not of the loop."""


@dataclass(frozen=True)
class Kept:
    """Intervals of one run that are compared.

    ``round_of`` numbers the rounds, by step; a step that is left out has none. ``unusual`` are rows
    (step, program) that hold a program which is not compared; ``about`` tells of whole rounds.
    """

    round_of: pd.Series
    unusual: pd.DataFrame
    about: str


@dataclass(frozen=True)
class _Run:
    """Intervals of one run: whether each ([steps] by program) holds a program, and how often."""

    steps: np.ndarray
    is_in_row: bool
    has: Mapping[str, np.ndarray]

    def of(self, program: str) -> np.ndarray:
        """Whether each interval holds it."""
        return self.has.get(program, np.zeros(len(self.steps), bool))

    def distance(self, program: str) -> int:
        """At which the program comes by this run alone; 0 where it does not tell."""
        places = np.flatnonzero(self.of(program))
        return period(places, len(self.steps)) if self.is_in_row else 0

    def is_like(self, program: str, distance: int) -> bool:
        """Whether it comes at a distance that the other run tells, or not at all."""
        places = np.flatnonzero(self.of(program))
        if not self.is_in_row or len(self.steps) < distance:
            return False
        return not len(places) or like(places, len(self.steps), distance) > 0


def alike_intervals(base: Trace, new: Trace) -> tuple[Kept, Kept]:
    """The intervals of both runs that are compared with each other."""
    lengths = [intervals_of(account_of(trace)).pandas()["interval_ns"] for trace in (base, new)]
    worth = _WORTH * min((float(each.median()) for each in lengths if len(each)), default=0.0)
    runs = [_run(trace, worth) for trace in (base, new)]
    periods = _periods(runs)
    rare = {name for name in _names(runs) - set().union(*periods) if _is_rare(name, runs)}
    uneven = [{name for name, distance in own.items() if not distance} for own in periods]
    rare |= uneven[0] | uneven[1]
    kept = [_kept(run, own, rare) for run, own in zip(runs, periods, strict=True)]
    if any(len(run.steps) and not len(own.round_of) for run, own in zip(runs, kept, strict=True)):
        rare |= set().union(*periods)
        kept = [_kept(run, {}, rare) for run in runs]
    return kept[0], kept[1]


def _run(trace: Trace, worth: float) -> _Run:
    steps = np.sort(intervals_of(account_of(trace)).pandas()["step"].unique())
    in_row = steps_in_a_row(trace)
    others = other_programs(trace).pandas()
    mine = others[others["is_program"]]
    sums = mine.pivot_table(index="step", columns="program", values="per_device_ns", aggfunc="sum")
    sums = sums.reindex(in_row if len(in_row) else steps).fillna(0.0)
    has = {}
    for name in sums.columns:
        ns = sums[name].to_numpy()
        usual = float(ns.min(initial=np.inf, where=ns > 0)) if (ns > 0).all() else 0.0
        has[str(name)] = (ns > _MANY * usual) & (ns - usual > worth)
    return _Run(sums.index.to_numpy(), len(in_row) > 0, has)


def _names(runs: Sequence[_Run]) -> set[str]:
    return {name for run in runs for name, has in run.has.items() if has.any()}


def _periods(runs: Sequence[_Run]) -> list[dict[str, int]]:
    """Distances of programs that come at equal ones, per run; 0 of one that cannot be compared so.

    A program that has a distance in one run alone, as the other is short, has that one in both.
    """
    found: list[dict[str, int]] = [{}, {}]
    for name in _names(runs):
        own = [run.distance(name) for run in runs]
        if not any(own):
            own = [_of_both(name, runs)] * 2
        if max(own) < 1:
            continue
        for at, run in enumerate(runs):
            if not own[at] and run.is_like(name, own[1 - at]):
                own[at] = own[1 - at]
        for at in (0, 1):
            found[at][name] = own[at] if all(own) else 0
    return found


def _of_both(name: str, runs: Sequence[_Run]) -> int:
    """The distance of a program that comes twice in each run, at the same one; else 0."""
    places = [np.flatnonzero(run.of(name)) for run in runs]
    if any(len(own) != 2 for own in places):
        return 0
    distance = int(np.diff(places[0])[0])
    return distance if all(run.is_like(name, distance) for run in runs) else 0


def _is_rare(name: str, runs: Sequence[_Run]) -> bool:
    """Whether a program that comes at no equal distance is in a minority of the intervals.

    Where both runs have it in some intervals and not in others, those of both are counted.
    """
    has = [run.of(name) for run in runs]
    partial = [own for own in has if own.any() and not own.all()]
    return bool(partial) and float(np.concatenate(partial).mean()) <= _MINORITY


def _kept(run: _Run, periods: Mapping[str, int], rare: set[str]) -> Kept:
    names = sorted(name for name in rare if run.of(name).any())
    unusual = [(step, name) for name in names for step in run.steps[run.of(name)].tolist()]
    is_out = np.zeros(len(run.steps), bool)
    for name in names:
        is_out |= run.of(name)
    length = math.lcm(*(distance for distance in periods.values() if distance))
    best = max(
        (_rounds(is_out, length, first) for first in range(min(length, len(is_out) + 1))),
        key=_count,
    )
    round_of = pd.Series(best, index=run.steps, dtype="float64")
    about = ""
    told = ", ".join(
        f"{name} once in {distance} steps"
        for name, distance in sorted(periods.items())
        if distance and run.of(name).any()
    )
    if told:
        about = (
            f"whole rounds are compared ({told}): {format_count(_count(best))} of "
            f"{format_count(len(best))} intervals"
        )
    table = pd.DataFrame(unusual, columns=["step", "program"]).sort_values(["step", "program"])
    return Kept(round_of[round_of.notna()], table, about)


def _rounds(is_out: np.ndarray, length: int, first: int) -> np.ndarray:
    """Number of the round of each interval, float64; NaN where no whole round is left of it."""
    number = (np.arange(len(is_out)) - first) // length
    sizes = pd.Series(~is_out).groupby(number).sum()
    whole = sizes.index[sizes.eq(length)]
    found: np.ndarray = np.where(np.isin(number, whole), number, np.nan)
    return found


def _count(rounds: np.ndarray) -> int:
    return int(np.isfinite(rounds).sum())
