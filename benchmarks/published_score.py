"""Question: how near is the closed form to each published number, and to each family of them?"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from published_rows import Family, Published

from moeprof.projector.breakdown import MemoryBreakdown, StageBreakdown, total
from moeprof.projector.frameworks.megatron.account import CACHE_SHARE
from moeprof.projector.frameworks.megatron.ranks import NAMES
from moeprof.projector.memory import project
from moeprof.projector.setting import Counts, Setting

GIB = 2**30
TOKENS = 4096
"""Of the projection whose activations a base row scales; any number gives the same answer."""


@dataclass(frozen=True)
class Score:
    """A row beside its projection. GiB; ``error`` is projected / published − 1.

    ``static_error`` is that of weights, gradients and optimizer where they were published too;
    with ``is_static_input`` the number of devices was inferred from just that.
    ``is_bound``: an arena that failed, below what is projected; XLA made it that small to get near
    its budget, so that the step's own size is not known. ``verdict_right`` is None where no verdict
    is published; a borderline projection is right either way, as it leaves the verdict open.
    """

    id: str
    family: str
    unknown: str | None
    metric: str | None = None
    published_gib: float | None = None
    projected_gib: float | None = None
    error: float | None = None
    is_bound: bool = False
    static_gib: float | None = None
    static_projected_gib: float | None = None
    static_error: float | None = None
    is_static_input: bool = False
    verdict: str | None = None
    projected_verdict: str | None = None
    verdict_right: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class FamilyScore:
    """Errors of a family's sizes: median of absolute ones, median of signed ones (bias)."""

    family: str
    title: str
    sizes: int
    median_error: float | None
    bias: float | None
    verdicts: int
    verdicts_right: int


def score_all(families: Iterable[Family], counts: Counts | None = None) -> list[Score]:
    """Every row of every family."""
    return [score for family in families for score in score_family(family, counts)]


def score_family(family: Family, counts: Counts | None = None) -> list[Score]:
    """Every row of a family; rows against a base need that one's scale."""
    by_id = {row.id: row for row in family.rows}
    return [_score(family, row, by_id, counts) for row in family.rows]


def summary(family: Family, scores: Sequence[Score]) -> FamilyScore:
    """One line per family."""
    errors = [score.error for score in scores if score.error is not None]
    verdicts = [score.verdict_right for score in scores if score.verdict_right is not None]
    return FamilyScore(
        family.name,
        family.title,
        len(errors),
        statistics.median(map(abs, errors)) if errors else None,
        statistics.median(errors) if errors else None,
        len(verdicts),
        sum(verdicts),
    )


def as_json(score: Score | FamilyScore) -> dict[str, object]:
    """A row of the result file, rounded so that it does not change with the machine."""
    return {
        key: round(value, 4) if isinstance(value, float) else value
        for key, value in asdict(score).items()
    }


def _score(
    family: Family, row: Published, by_id: dict[str, Published], counts: Counts | None
) -> Score:
    if row.unknown:
        return Score(row.id, family.name, row.unknown, note=row.values.get("note", ""))
    values = row.values
    is_relative = row.metric == "against base"
    breakdown = project(_with_batch(row, counts))
    scale = _scale(by_id[values["base"]], counts) if is_relative else 1.0
    projected = projected_gib(breakdown, row, scale)
    published = values.get("gib")
    is_base = is_relative and values["base"] == row.id
    error = None
    if published is not None and projected is not None and not is_base:
        error = projected / published - 1
    static, static_gib = _static(breakdown, row), values.get("static_gib", values.get("args_gib"))
    verdict = None if is_relative else breakdown.verdict
    wanted = values.get("verdict") if verdict else None
    return Score(
        row.id,
        family.name,
        None,
        metric=row.metric,
        published_gib=published,
        projected_gib=projected,
        error=error,
        is_bound=row.metric == "temp arena" and (error or 0) > 0,
        static_gib=static_gib,
        static_projected_gib=static if static_gib else None,
        static_error=static / static_gib - 1 if static_gib else None,
        is_static_input="static memory" in values.get("inferred", ""),
        verdict=wanted,
        projected_verdict=verdict,
        verdict_right=None if wanted is None else verdict in (wanted, "borderline"),
        note=values.get("note", ""),
    )


def _with_batch(row: Published, counts: Counts | None) -> Setting:
    setting = row.setting(counts)
    if row.metric == "against base":
        return replace(setting, pdbs=1, sequence=TOKENS)
    return setting


def projected_gib(breakdown: MemoryBreakdown, row: Published, scale: float = 1.0) -> float | None:
    """What a row's metric would show. ``scale`` multiplies activations."""
    stage = _stage(breakdown, row)
    args, temp = total(stage.args), stage.peak.size_bytes
    if args is None or temp is None:
        return None
    allocated = float(args) + scale * float(temp)
    reserve = float(total(stage.outside) or 0) - CACHE_SHARE * (float(args) + float(temp))
    moments = total([r for r in stage.args if r.kind == "optimizer" and "moment" in r.name])
    sizes = {
        "temp arena": float(temp),
        "args": float(args),
        "compile": allocated,
        "allocated": allocated,
        "reserved": allocated * (1 + CACHE_SHARE),
        "device": allocated * (1 + CACHE_SHARE) + reserve,
        "against base": allocated * (1 + CACHE_SHARE) + reserve,
        "moments": float(moments or 0) * row.values.get("share", 1.0),
    }
    return None if row.metric is None else sizes[row.metric] / GIB


def _scale(base: Published, counts: Counts | None) -> float:
    """By how much the base row's activations exceed those of the assumed batch."""
    breakdown = project(_with_batch(base, counts))
    without, once = (projected_gib(breakdown, base, scale) or 0.0 for scale in (0.0, 1.0))
    return float((base.values["gib"] - without) / (once - without))


def _stage(breakdown: MemoryBreakdown, row: Published) -> StageBreakdown:
    named = {"first": breakdown.stages[0], "last": breakdown.stages[-1]}
    return named.get(row.values.get("stage", "worst"), breakdown.worst)


def _static(breakdown: MemoryBreakdown, row: Published) -> float:
    """What stays between steps."""
    stage = _stage(breakdown, row)
    beside = [r for r in stage.peak.rows if r.name in NAMES]
    return float((total(stage.args) or 0) + (total(beside) or 0)) / GIB
