"""Question: which figure shows what devices, ranks and stages do and wait for?

Every function is pure: document in, plotly figure out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from moeprof.answers import story
from moeprof.answers.bars import Bars, Figure, Fill, horizontal
from moeprof.answers.colours import STEP_PARTS
from moeprof.answers.document import Document, Value, rows
from moeprof.answers.values import number
from moeprof.reports.figures.stage_grid import KINDS
from moeprof.units import format_ns

_MOST = 64
_MOST_CALL_SITES = 24
_MOST_WAITED_FOR = 24
"""Ranks that are drawn as waited for; the map below has all."""
_WORK = Fill("#0a6fb5")
_TRANSFER = Fill("#dd6a1f")
_WAIT = Fill("#dd6a1f", "/")
_IDLE = Fill("#a3a9af", ".")
_UNTOLD = Fill("#a3a9af", "x")


def timeline(document: Document) -> Figure | None:
    """One bar per device: what it does in a step and until the next one starts; ms.

    Where no interval is known the bars are of the steps alone.
    """
    every = rows(document, "timeline")
    known = [row for row in every if row.get("interval_ns") is not None]
    by_rank: dict[int, list[Mapping[str, Value]]] = {}
    for row in known or every:
        by_rank.setdefault(int(number(row["rank"])), []).append(row)
    ranks = sorted(by_rank)[:_MOST]
    parts = {
        "compute": "compute",
        "exposed communication": "exposed_communication",
        "exposed copies": "exposed_copy",
        "idle": "idle",
    }
    if known:
        parts |= {"other work between steps": "between_other", "idle between steps": "between_idle"}
    bars = [
        _bars(name, Fill(*STEP_PARTS[part]), [_mean(by_rank[rank], f"{part}_ns") for rank in ranks])
        for name, part in parts.items()
    ]
    if not ranks:
        return None
    labels = [_named(by_rank[rank][0]) for rank in ranks]
    unit = "ms, mean over intervals" if known else "ms, mean over used steps"
    return horizontal(bars, labels, unit)


def collectives(document: Document) -> Figure | None:
    """One bar per call site: transfer, waiting for the last device, what is neither; ms.

    The transfer is that of the quickest device of each call. What another takes beyond that may be
    a slower link, or its start on a busy core: it is not told apart. Of many call sites those that
    take most have a bar, the others one together.
    """
    found = rows(document, "collectives")
    sites = sorted(found, key=lambda row: -number(row["per_step_ns"]))
    if not sites:
        return None
    whole = dict(enumerate(number(row["per_step_ns"]) for row in sites))
    waits = {n: number(row["wait_ns"]) for n, row in enumerate(sites) if row["wait_ns"] is not None}
    moves = {n: number(sites[n]["moved_ns"]) for n in waits}
    beyond = {n: whole[n] - waits[n] - moves[n] for n in waits}
    beyond = {n: beyond_ns for n, beyond_ns in beyond.items() if beyond_ns > 0}
    rest = {n: length_ns for n, length_ns in whole.items() if n not in waits}
    kinds = (
        ("transfer", _WORK, moves),
        ("waiting", _WAIT, waits),
        ("beyond the quickest device's transfer", _IDLE, beyond),
        ("transfer or waiting", _UNTOLD, rest),
    )
    # one bar for a single call site more would save nothing
    most = _MOST_CALL_SITES if len(sites) > _MOST_CALL_SITES + 1 else len(sites)
    bars = [_placed(name, fill, _folded(lengths, most)) for name, fill, lengths in kinds if lengths]
    labels = [str(row["op"]) for row in sites[:most]]
    labels += [f"{len(sites) - most} smaller"] if len(sites) > most else []
    return horizontal(bars, labels, f"ms {story.basis(document)}")


def _folded(durations_ns: Mapping[int, float], most: int) -> dict[int, float]:
    """Lengths by place, those of the places from `most` on as one sum there."""
    folded: dict[int, float] = {}
    for place, length_ns in durations_ns.items():
        at = min(place, most)
        folded[at] = folded.get(at, 0.0) + length_ns
    return folded


def _named(row: Mapping[str, Value]) -> str:
    """A device by its rank, or by host and ordinal where no rank is known."""
    if number(row["rank"]) >= 0:
        return f"rank {row['rank']}"
    return f"{row['host']} device {row['device']}"


def stragglers(document: Document) -> Figure | None:
    """Two bars per rank: how long others wait for it, and how long it waits; ms per step."""
    every = rows(document, "stragglers")
    ranks = every[:_MOST_WAITED_FOR]  # the document has them in this order
    if not ranks:
        return None
    left = f"; the {len(ranks)} most waited for of {len(every)}" if len(every) > len(ranks) else ""
    bars = [
        _bars("others wait for it", _TRANSFER, [number(row["waited_for_ns"]) for row in ranks]),
        _bars("it waits for others", _WAIT, [number(row["waits_ns"]) for row in ranks]),
    ]
    labels = [_named(row) for row in ranks]
    return horizontal(bars, labels, f"ms per step{left}", barmode="group")


def pipeline(document: Document) -> Figure | None:
    """One bar per stage: work, then idle in the ramp and in gaps; milliseconds."""
    stages = rows(document, "pipeline")[:_MOST]
    if not stages:
        return None
    columns = {
        "forward": "forward_ns",
        "backward": "backward_ns",
        "weight_gradient": "weight_gradient_ns",
        "ramp": "ramp_ns",
        "gap": "gaps_ns",
    }
    bars = [
        _bars(*KINDS[kind], [number(row[column]) for row in stages])
        for kind, column in columns.items()
        if any(number(row[column]) for row in stages)
    ]
    return horizontal(bars, [f"stage {row['stage']}" for row in stages], "ms per iteration")


def _mean(rows: Sequence[Mapping[str, Value]], name: str) -> float:
    return statistics.fmean(number(row[name]) for row in rows)


def _bars(name: str, fill: Fill, durations_ns: Sequence[float]) -> Bars:
    return _placed(name, fill, dict(enumerate(durations_ns)))


def _placed(name: str, fill: Fill, durations_ns: Mapping[int, float]) -> Bars:
    lengths = [duration_ns / 1e6 for duration_ns in durations_ns.values()]
    texts = [format_ns(duration_ns) for duration_ns in durations_ns.values()]
    return Bars(name, fill, list(durations_ns), lengths, texts, name, True)
