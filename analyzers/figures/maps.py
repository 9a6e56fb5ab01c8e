"""Question: which maps show what experts get, by layer, and which rank waits in which step?

Every function is pure: document in, plotly figure out. Loads are coloured by their ratio to an even
share, on one scale in every report: twice as much is as far from even as half as much.
"""

from __future__ import annotations

import numpy as np

from moeprof.answers import story
from moeprof.answers.bars import Figure, Json
from moeprof.answers.cells import (
    CellMap,
    Cells,
    Side,
    axis_title,
    columns_of,
    digits,
    drawn,
    metric,
    plain,
    scales,
)
from moeprof.answers.document import Document, rows

WAITS = (
    "Waiting by rank and step: The rank whose row stays pale while others have colour is the one "
    "they wait for. A cross marks it where that costs over 1 % of the step; bars at the right show "
    "how long others wait for each rank."
)
_NOTICEABLE = 0.01
"""Below this share of the step nobody is marked as late."""
_LIGHT_WAIT = ((0, "#f3f3f1"), (0.5, "#f0a05c"), (1, "#8c2d04"))
_DARK_WAIT = ((0, "#262b30"), (0.5, "#a3561a"), (1, "#ffc08a"))


def waits(document: Document) -> Figure | None:
    """Rank × step: how long it waits; a cross where others wait for it, beside it how long."""
    table = columns_of(document, "wait_map")
    if table is None:
        return None
    ranks, steps = np.unique(table["rank"]), np.unique(table["step"])
    wait_ms, late_ms = (
        table[name].reshape(len(ranks), len(steps)) / 1e6 for name in ("wait_ns", "late_ns")
    )
    found = CellMap(
        rows=[digits(rank) for rank in ranks],
        columns=[_step_name(step) for step in steps],
        cells=wait_ms,
        told=np.stack([wait_ms, late_ms], axis=2),
        hover="rank %{y}, step %{x}<br>waits %{customdata[0]:.3f} ms, "
        "others wait %{customdata[1]:.3f} ms for it<extra></extra>",
    )
    basis = story.basis(document)
    told = f"others wait %{{x:.3f}} ms {basis} for rank %{{y}}<extra></extra>"
    side = Side(_waited_for(document, ranks), told, "waited<br>for, ms")
    key: dict[str, Json] = {"title": {"text": "waiting, ms", "side": "top"}}
    colours: dict[str, Json] = {
        "z": plain(wait_ms),
        "zmin": 0,
        "zmax": max(float(np.nanmax(wait_ms)), 1e-6),
        **scales(_LIGHT_WAIT, _DARK_WAIT),
    }
    bundle = metric(document, "wait_map", "steps_per_cell")
    axes = ("step" if bundle == 1 else f"step, {bundle} to a cell", "rank")
    figure = drawn(found, side, axes, colours, key)
    marks = _marks(document, found, late_ms)
    return {**figure, "data": [*_list(figure["data"]), marks]} if marks else figure


def _waited_for(document: Document, ranks: Cells) -> list[float | None]:
    """Milliseconds that others wait for each rank: the figures of the table, None without them."""
    found = {row["rank"]: row["waited_for_ns"] for row in rows(document, "stragglers")}
    waited = [found.get(int(rank)) for rank in ranks]
    return [round(ns / 1e6, 6) if isinstance(ns, int | float) else None for ns in waited]


def _marks(document: Document, found: CellMap, late_ms: Cells) -> Json:
    """A cross on the rank that others wait for most in a step, where it is a noticeable time.

    Without the time of a step none is known to be.
    """
    time = story.step_time(document)
    if time is None:
        return None
    least_ms = time.median_ns * _NOTICEABLE / 1e6
    known = np.nan_to_num(late_ms, nan=0.0)
    worst = known.argmax(axis=0)
    places = [(row, n) for n, row in enumerate(worst) if known[row, n] > least_ms]
    if not places:
        return None
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [found.columns[n] for _row, n in places],
        "y": [found.rows[row] for row, _n in places],
        "hoverinfo": "skip",
        "showlegend": False,
        "marker": {
            "symbol": "x",
            "size": 9,
            "color": "#ffffff",
            "line": {"color": "#1d2125", "width": 1.5},
        },
    }


def _step_name(step: float) -> str:
    return "whole capture" if step < 0 else digits(step)


def _list(value: Json) -> list[Json]:
    assert isinstance(value, list)
    return value


EXPERTS = (
    "Tokens by layer and expert: Orange gets more than an even share, blue less. A column that is "
    "orange in all layers is a hot expert; bars at the right show the busiest of each layer."
)
RANKS = (
    "Tokens by layer and expert rank: The same, summed over the experts of a rank. A layer takes "
    "as long as its fullest rank, and a receive buffer must hold its rows."
)
_MOST_RANKS = 128
_FEW_RANKS = 4
_NAMED_RANKS = 8
_SPREAD = 2
"""Colours end at 2**±2: a quarter of the even share, and four times."""
_LIGHT_LOAD = (
    (0, "#08519c"),
    (0.25, "#7fb3dc"),
    (0.5, "#f3f3f1"),
    (0.75, "#f0a05c"),
    (1, "#a63603"),
)
_DARK_LOAD = (
    (0, "#6cb6f5"),
    (0.25, "#2f6390"),
    (0.5, "#262b30"),
    (0.75, "#a3561a"),
    (1, "#ffa95e"),
)
_EDGE = "rgba(125,133,141,0.75)"


def expert_load(document: Document) -> Figure | None:
    """Layer × expert: tokens against the even share; beside it the busiest expert of each layer."""
    table = columns_of(document, "load_map")
    if table is None:
        return None
    layers = np.unique(table["layer"])
    shape = len(layers), -1
    load, expert, rank = (table[n].reshape(shape) for n in ("load_factor", "expert", "rank"))
    bundle = metric(document, "load_map", "experts_per_cell")
    whole = metric(document, "load_map", "experts")
    owner = " (rank %{customdata[1]})" if metric(document, "load_map", "ranks") > 1 else ""
    named = "expert %{customdata[0]}" if bundle == 1 else "experts %{x}, of them %{customdata[0]}"
    found = CellMap(
        rows=[digits(layer) for layer in layers],
        columns=_cell_names(load.shape[1], bundle, whole),
        cells=load,
        told=np.stack([expert, rank, load, table["tokens"].reshape(shape)], axis=2),
        hover=f"layer %{{y}}, {named}{owner}<br>%{{customdata[2]:.2f}} × even share, "
        "%{customdata[3]:,.0f} tokens per step<extra></extra>",
    )
    side = Side(_largest(load), "layer %{y}: %{x:.2f} × even share<extra></extra>", "max ×")
    axes = ("expert" if bundle == 1 else f"expert, {bundle} to a cell", "layer")
    return _with_ranks(_loads(found, side, axes), rank)


def rank_load(document: Document) -> Figure | None:
    """Layer × rank: pairs against the even share; beside it the fullest rank of each layer."""
    table = columns_of(document, "rank_map")
    if table is None:
        return None
    layers = np.unique(table["layer"])
    load, pairs = (table[name].reshape(len(layers), -1) for name in ("load_factor", "pairs"))
    found = CellMap(
        rows=[digits(layer) for layer in layers],
        columns=[str(rank) for rank in range(load.shape[1])],
        cells=load,
        told=np.stack([load, pairs], axis=2),
        hover="layer %{y}, rank %{x}<br>%{customdata[0]:.2f} × even share, "
        "%{customdata[1]:,.0f} (token, expert) pairs per step<extra></extra>",
    )
    side = Side(_largest(load), "layer %{y}: %{x:.2f} × even share<extra></extra>", "max ×")
    return _loads(found, side, ("rank of the expert axis", "layer"))


def _loads(found: CellMap, side: Side, axes: tuple[str, str]) -> Figure:
    shown = np.log2(np.clip(found.cells, 2.0**-_SPREAD, 2.0**_SPREAD))
    key: dict[str, Json] = {
        "title": {"text": "× even share", "side": "top"},
        "tickvals": list(range(-_SPREAD, _SPREAD + 1)),
        "ticktext": ["≤ ¼", "½", "1", "2", "≥ 4"],
    }
    colours: dict[str, Json] = {
        "z": plain(shown),
        "zmin": -_SPREAD,
        "zmax": _SPREAD,
        **scales(_LIGHT_LOAD, _DARK_LOAD),
    }
    return drawn(found, side, axes, colours, key)


def _with_ranks(figure: Figure, ranks: Cells) -> Figure:
    """Lines between the ranks that own the columns, and their numbers above, where all rows agree.

    Owners that are mixed or unknown, or a single one, have no lines.
    """
    owners = ranks[0]
    starts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist()]
    is_plain = (ranks == owners).all() and (owners >= 0).all()
    if not is_plain or not 1 < len(starts) <= _MOST_RANKS:
        return figure
    ends = [*starts[1:], len(owners)]
    every = -(-len(starts) // _NAMED_RANKS)
    word = "rank " if len(starts) <= _FEW_RANKS else ""
    lines: list[Json] = [_edge(start - 0.5) for start in starts[1:]]
    names: list[Json] = [
        _rank_name((start + end - 1) / 2, f"{word}{digits(owners[start])}")
        for start, end in list(zip(starts, ends, strict=True))[::every]
    ]
    layout = figure["layout"]
    assert isinstance(layout, dict)
    axis = layout["xaxis"]
    assert isinstance(axis, dict)
    title = axis_title("expert" if word else "expert; above: the rank that owns it")
    return {
        **figure,
        "layout": {
            **layout, "shapes": lines, "annotations": names, "xaxis": {**axis, "title": title},
        },
    }  # fmt: skip


def _edge(at: float) -> Json:
    place: dict[str, Json] = {"xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1}
    return {"type": "line", **place, "line": {"color": _EDGE, "width": 1}}


def _rank_name(at: float, text: str) -> Json:
    place: dict[str, Json] = {"xref": "x", "yref": "paper", "x": at, "y": 1, "yanchor": "bottom"}
    return {**place, "text": text, "showarrow": False, "font": {"size": 11}}


def _cell_names(cells: int, bundle: int, experts: int) -> list[str]:
    if bundle == 1:
        return [str(n) for n in range(cells)]
    lasts = [min((n + 1) * bundle, experts) - 1 for n in range(cells)]
    return [f"{n * bundle}–{last}" for n, last in enumerate(lasts)]


def _largest(cells: Cells) -> list[float | None]:
    known = np.where(np.isnan(cells), -1.0, cells).max(axis=1)
    return [value if value >= 0 else None for value in known.round(4).tolist()]
