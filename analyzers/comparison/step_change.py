"""Question: by how much did the step change, and which of its times did?

The step is the interval from its start to the start of the next, and per device that is compute +
exposed communication + exposed copies + idle + idle between steps + other work between steps: its
change is the sum of theirs. Figures are means over devices and intervals, as those add up; medians
do not. Which intervals count is decided for both runs at once (`alike`): whole rounds of programs
that come at equal distances, and none that holds another program which most do not have, as an
evaluation: it says nothing of the step. Where one of the runs has no interval, that has one step
say, both are compared by the length of their steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.account import IN_STEP, PARTS, intervals_of
from moeprof.analyzers.comparison.alike import Kept, alike_intervals
from moeprof.analyzers.comparison.noise import exact_ns, noise_ns, told
from moeprof.analyzers.questions.timeline import timeline
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_ns

CLASSES = PARTS
"""Times that add up to the step."""
_MOST_LISTED = 5

STEP_CHANGES = Schema(
    "step_changes",
    (
        Column("part", "text", "", "step, from its start to the next one's, or a time of it"),
        Column("base_ns", "float64", "ns", "mean over devices and intervals of base"),
        Column("new_ns", "float64", "ns", "mean over devices and intervals of new"),
        Column("change_ns", "float64", "ns", "new less base; the parts add up to the step's"),
        Column("change_share", "float64", "share", "change of base; none where base has nothing"),
        Column("noise_ns", "float64", "ns", "95 % half width of the change; none below 2 steps"),
        Column("verdict", "text", "", "beyond noise, within noise, noise not known"),
    ),
)

TOKEN_CHANGES = Schema(
    "token_changes",
    (
        Column("part", "text", "", "token: the step's time over the tokens of a step"),
        Column("base_tokens", "float64", "tokens", "that all devices read in a step of base"),
        Column("new_tokens", "float64", "tokens", "that all devices read in a step of new"),
        Column("base_ns", "float64", "ns", "mean time of base's step per token of it"),
        Column("new_ns", "float64", "ns", "mean time of new's step per token of it"),
        Column("change_ns", "float64", "ns", "new less base"),
        Column("change_share", "float64", "share", "change of base"),
        Column("noise_ns", "float64", "ns", "95 % half width of the change; none below 2 steps"),
        Column("verdict", "text", "", "beyond noise, within noise, noise not known"),
    ),
)


@dataclass(frozen=True)
class StepSide:
    """Times of one run that are compared: rows of `timeline`, those with an interval apart.

    ``intervals`` has those that are compared, with the number of their round; ``left_out`` tells
    which are not, and why.
    """

    steps: pd.DataFrame
    intervals: pd.DataFrame
    left_out: tuple[str, ...]


def step_sides(base: Trace, new: Trace) -> tuple[StepSide, StepSide]:
    """The steps and intervals of two runs."""
    first, second = (
        _side(timeline(trace).table, kept)
        for trace, kept in zip((base, new), alike_intervals(base, new), strict=True)
    )
    return first, second


def _side(steps: pd.DataFrame, kept: Kept) -> StepSide:
    known = intervals_of(steps)
    numbered = known.assign(round=known["step"].map(kept.round_of))
    told = [text for text in (_listed(kept.unusual, known), kept.about) if text]
    return StepSide(steps, numbered[numbered["round"].notna()], tuple(told))


def step_changes(base: StepSide, new: StepSide) -> pd.DataFrame:
    """`STEP_CHANGES`; no row where one of the runs has no step."""
    if base.steps.empty or new.steps.empty:
        return STEP_CHANGES.frame()
    is_by_interval = by_interval(base, new)
    parts = CLASSES if is_by_interval else IN_STEP
    tables = [side.intervals if is_by_interval else side.steps for side in (base, new)]
    means = [exact_ns([table[f"{part}_ns"].mean() for part in parts]) for table in tables]
    means = [np.append(mean.sum(), mean) for mean in means]
    change = means[1] - means[0]
    noise = noise_ns(*(_by_round(table, parts) for table in tables))
    share = np.divide(change, means[0], out=np.full(len(change), np.nan), where=means[0] > 0)
    return STEP_CHANGES.frame(
        {
            "part": ["step", *parts],
            "base_ns": means[0],
            "new_ns": means[1],
            "change_ns": change,
            "change_share": share,
            "noise_ns": noise,
            "verdict": told(change, noise),
        }
    )


def token_changes(base: StepSide, new: StepSide, tokens: tuple[int, int]) -> pd.DataFrame:
    """`TOKEN_CHANGES` of steps of so many tokens; no row where these, or steps, are not known."""
    if not all(tokens) or base.steps.empty or new.steps.empty:
        return TOKEN_CHANGES.frame()
    is_by_interval = by_interval(base, new)
    tables = [side.intervals if is_by_interval else side.steps for side in (base, new)]
    step = step_changes(base, new).iloc[0]
    means = [step["base_ns"] / tokens[0], step["new_ns"] / tokens[1]]
    parts = CLASSES if is_by_interval else IN_STEP
    rounds = [_by_round(table, parts)[:1] for table in tables]
    noise = noise_ns(*(each / count for each, count in zip(rounds, tokens, strict=True)))
    change = np.array([means[1] - means[0]])
    return TOKEN_CHANGES.frame(
        {
            "part": ["token"],
            "base_tokens": [float(tokens[0])],
            "new_tokens": [float(tokens[1])],
            "base_ns": means[:1],
            "new_ns": means[1:],
            "change_ns": change,
            "change_share": change / means[0] if means[0] else [np.nan],
            "noise_ns": noise,
            "verdict": told(change, noise),
        }
    )


def by_interval(base: StepSide, new: StepSide) -> bool:
    """Whether intervals are compared; else the lengths of steps are."""
    return len(base.intervals) > 0 and len(new.intervals) > 0


def notes_on_steps(base: StepSide, new: StepSide) -> list[str]:
    """What the times of steps are, and which intervals they leave out."""
    if base.steps.empty or new.steps.empty:
        return []
    sides = {"base": base, "new": new}
    if not by_interval(base, new):
        without = " and ".join(name for name, side in sides.items() if side.intervals.empty)
        return [
            f"no interval from step to step is known in {without}: the step is its device work, "
            "first start to last end, and what lies between steps is not compared; capture a few "
            "steps in a row of both",
            *_left_out(sides),
        ]
    counts = [side.intervals["step"].nunique() for side in sides.values()]
    return [
        f"the step is from its start to the start of the next: mean of {counts[0]} of base and "
        f"{counts[1]} of new",
        *_left_out(sides),
    ]


def _left_out(sides: Mapping[str, StepSide]) -> list[str]:
    return [f"{name}: {text}" for name, side in sides.items() for text in side.left_out]


def _listed(unusual: pd.DataFrame, known: pd.DataFrame) -> str:
    """``left out: the interval after step 101 (60.00 ms, jit_evaluate)``; empty without any."""
    if unusual.empty:
        return ""
    length = known.groupby("step")["interval_ns"].mean()
    programs = unusual.groupby("step")["program"].agg(", ".join)
    steps = programs.index.tolist()
    named = [
        f"{step} ({format_ns(ns)}, {names})"
        for step, ns, names in zip(
            steps[:_MOST_LISTED], length.reindex(steps).tolist(), programs.tolist(), strict=False
        )
    ]
    left = len(programs) - len(named)
    more = f" and {left} more" if left else ""
    many = len(programs) > 1
    return (
        f"{'intervals' if many else 'the interval'} with another program {'are' if many else 'is'} "
        f"left out of the step's times: after step {', '.join(named)}{more}"
    )


def _by_round(table: pd.DataFrame, parts: tuple[str, ...]) -> np.ndarray:
    """[step and parts, rounds or steps] ns, mean over devices and the intervals of a round."""
    means = (
        table.groupby("round" if "round" in table else "step")[[f"{part}_ns" for part in parts]]
        .mean()
        .to_numpy()
        .T
    )
    return np.vstack([means.sum(axis=0), means])
