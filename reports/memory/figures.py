"""Question: which figures show a memory projection?

Every function is pure: document in, plotly figure out. Lengths are GiB.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.answers.bars import Bars, Figure, Fill, Json, horizontal
from moeprof.reports.memory import words
from moeprof.reports.memory.document import (
    LeverInfo,
    MemoryDocument,
    MemoryRow,
)
from moeprof.reports.memory.phases import GIB, Component
from moeprof.units import format_bytes

_LIMIT = "#c0392b"
_BEYOND = 2.0
"""The axis ends at this many times the limit: what is far beyond would hide all else."""

KINDS = {
    "params": Fill("#0a6fb5"),
    "optimizer": Fill("#b79fd6"),
    "inputs": Fill("#8c8c3e"),
    "grads": Fill("#2f7f86"),
    "activations": Fill("#009e73"),
    "temporaries": Fill("#dd6a1f"),
    "collective buffers": Fill("#57b8b0"),
    "EP buffers": Fill("#c9a800"),
    "runtime reserve": Fill("#a9afb5", "/"),
}
"""Colour of each kind of component, in the order of the legend."""
_NAMES = {"params": "weights", "grads": "gradients", "inputs": "batch"}
"""Kinds that have a plainer name."""
_OTHER = Fill("#6e757c")
_ON_BAR = "#1d2125"
_GAINS = Fill("#1b7447")


def inside(document: MemoryDocument) -> Figure | None:
    """One bar per cell, args and temp by kind, against the pool; strategies stand apart."""
    rows = [
        r for r in document["rows"] if r["args_bytes"] is not None and r["temp_bytes"] is not None
    ]
    return _stacked(_grouped(rows), ("args", "temp"), "pool_bytes", "pool")


def outside(document: MemoryDocument) -> Figure | None:
    """One bar per strategy, what lies beside the pool, against what is left there.

    Where the pool grows into what is left, there is no such limit.
    """
    rows = [r for r in document["rows"] if r["outside_bytes"] is not None]
    first = list({row["strategy"]: row for row in reversed(rows)}.values())[::-1]
    limit = None if words.is_allocating(document) else "outside_limit_bytes"
    return _stacked(first, ("outside",), limit, "left beside the pool")


def stages(row: MemoryRow) -> Figure | None:
    """One bar per pipeline stage: args and temp, against the pool."""
    found = row["stages"]
    if len(found) < 2:
        return None
    kinds: list[Bars] = []
    for name, key, fill in (("given to the step", "args_bytes", KINDS["params"]),
                            ("arena of the step", "temp_bytes", KINDS["temporaries"])):  # fmt: skip
        sizes = {n: stage[key] for n, stage in enumerate(found) if stage[key] is not None}  # type: ignore[literal-required]
        kinds.append(_bars(name, fill, sizes))
    labels = [f"stage {stage['stage']}" for stage in found]
    figure = horizontal(kinds, labels, "GiB")
    whole = [(stage["args_bytes"] or 0) + (stage["temp_bytes"] or 0) for stage in found]
    return _with_limit(figure, [row["pool_bytes"]] * len(found), "pool", whole)


def levers(found: Sequence[LeverInfo]) -> Figure | None:
    """One bar per lever: the room that it gains."""
    if not found:
        return None
    sizes = {n: lever["saved_bytes"] for n, lever in enumerate(found)}
    bars = [_bars("gains", _GAINS, sizes)]
    figure = horizontal(bars, [lever["name"] for lever in found], "GiB less in the pool")
    traces = figure["data"]
    assert isinstance(traces, list)
    trace = traces[0]
    assert isinstance(trace, dict)
    said: Json = {**trace, "texttemplate": "−%{customdata}", "textposition": "auto"}
    return {**figure, "data": [said]}


def _grouped(rows: Sequence[MemoryRow]) -> list[MemoryRow | str]:
    """The rows, the name of a strategy before its first."""
    listed: list[MemoryRow | str] = []
    for row in rows:
        if row["strategy"] not in listed:
            listed.append(row["strategy"])
        listed.append(row)
    return listed


def _stacked(
    lines: Sequence[MemoryRow | str], pools: Sequence[str], limit: str | None, name: str
) -> Figure | None:
    """One bar per row; a text is a heading among them."""
    rows = [line for line in lines if not isinstance(line, str)]
    if not rows:
        return None
    kinds = []
    found = [
        [] if isinstance(line, str) else [c for c in line["components"] if c["pool"] in pools]
        for line in lines
    ]
    for kind in [*KINDS, ""]:
        sizes = {n: _sum(parts, kind) for n, parts in enumerate(found)}
        sizes = {n: size for n, size in sizes.items() if size}
        if sizes:
            fill = KINDS.get(kind, _OTHER)
            kinds.append(_bars(_NAMES.get(kind, kind) or "other", fill, sizes))
    figure = _with_headings(
        horizontal(kinds, [_label(line, pools) for line in lines], "GiB"), lines
    )
    if limit is None:
        return figure
    whole = [sum(c["bytes"] or 0 for c in parts) for parts in found]
    limits = [None if isinstance(line, str) else int(line[limit]) for line in lines]  # type: ignore[literal-required]
    return _with_limit(figure, limits, name, whole)


def _label(line: MemoryRow | str, pools: Sequence[str]) -> str:
    if isinstance(line, str):
        return line
    if pools == ("outside",):
        return line["strategy"]
    pdbs = "not known" if line["pdbs"] is None else line["pdbs"]
    return f"pdbs {pdbs} {words.MARKS[line['verdict']]}"


def _with_headings(figure: Figure, lines: Sequence[MemoryRow | str]) -> Figure:
    """The labels of headings in bold."""
    layout = figure["layout"]
    assert isinstance(layout, dict)
    axis, meta = layout["yaxis"], layout["meta"]
    assert isinstance(axis, dict)
    assert isinstance(meta, dict)

    def bold(names: Json) -> Json:
        assert isinstance(names, list)
        both = zip(names, lines, strict=True)
        return [f"<b>{name}</b>" if isinstance(line, str) else name for name, line in both]

    shown: Json = {
        **layout,
        "yaxis": {
            **axis,
            "ticktext": bold(axis["ticktext"]),
            "range": [len(lines) - 0.5, -0.5],  # a heading has no bar that would make room for it
            "autorange": False,
        },
        "meta": {**meta, "narrow": bold(meta["narrow"])},
    }
    return {**figure, "layout": shown}


def _sum(parts: Sequence[Component], kind: str) -> int:
    wanted = [c for c in parts if (c["kind"] == kind if kind else c["kind"] not in KINDS)]
    return sum(c["bytes"] or 0 for c in wanted)


def _bars(name: str, fill: Fill, sizes: dict[int, int]) -> Bars:
    return Bars(
        name=name,
        fill=fill,
        places=list(sizes),
        lengths=[size / GIB for size in sizes.values()],
        texts=[format_bytes(size) for size in sizes.values()],
        key=name,
        is_key=True,
    )


def _with_limit(
    figure: Figure, limits: Sequence[int | None], name: str, whole: Sequence[int]
) -> Figure:
    """A line at the limit, one for each bar where they differ (None: a heading has none).

    The axis ends where the longest bar does, or well beyond the line. ``whole`` are the bytes of
    the bars: what a bar that ends at the frame goes on to is written on it.
    """
    known = {n: size / GIB for n, size in enumerate(limits) if size is not None}
    least, most = min(known.values()), max(known.values())
    end = min(max(most * 1.08, max(whole) / GIB * 1.02), most * _BEYOND)
    layout = figure["layout"]
    assert isinstance(layout, dict)
    axis = layout["xaxis"]
    assert isinstance(axis, dict)
    text = f"{name} {most:.1f}"
    if f"{least:.1f}" != f"{most:.1f}":
        text = f"{name} {least:.1f} to {most:.1f}"
    shapes = [_line(most, "paper", 0.0, 1.0)]
    if least != most:
        shapes = [_line(limit, "y", place - 0.5, place + 0.5) for place, limit in known.items()]
    note: Json = {
        "xref": "x", "yref": "paper", "x": most, "y": 0, "yanchor": "top", "yshift": -18,
        "xanchor": "right" if most > end / 2 else "left",
        "text": text, "showarrow": False, "font": {"color": _LIMIT, "size": 12},
    }  # fmt: skip
    return {
        **figure,
        "layout": {
            **layout,
            "xaxis": {**axis, "range": [0, end], "rangemode": "normal"},
            "shapes": shapes,
            "annotations": [note, *_beyond(whole, end)],
        },
    }


def _line(limit: float, axis: str, start: float, end: float) -> Json:
    return {
        "type": "line", "xref": "x", "yref": axis, "x0": limit, "x1": limit, "y0": start,
        "y1": end, "line": {"color": _LIMIT, "width": 2, "dash": "dash"},
    }  # fmt: skip


def _beyond(whole: Sequence[int], end: float) -> list[Json]:
    """How far bars go that the frame cuts."""
    return [
        {
            "xref": "x", "yref": "y", "x": end, "y": place, "xanchor": "right", "xshift": -4,
            "text": f"{words.gib(size)} GiB →", "showarrow": False,
            "font": {"color": _ON_BAR, "size": 12},
        }
        for place, size in enumerate(whole)
        if size / GIB > end
    ]  # fmt: skip
