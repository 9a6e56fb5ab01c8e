"""Question: which figures show what experts get: by layer and expert, by layer and rank?

Every function is pure: document in, plotly figure out. Loads are coloured by their ratio to an even
share, on one scale in every report: twice as much is as far from even as half as much.
"""

from __future__ import annotations

import numpy as np

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
from moeprof.answers.document import Document

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
