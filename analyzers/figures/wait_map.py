"""Question: which figure shows which rank waits in which step, and for whom?

Pure: document in, plotly figure out.
"""

from __future__ import annotations

import numpy as np

from moeprof.answers import story
from moeprof.answers.bars import Figure, Json
from moeprof.answers.cells import (
    CellMap,
    Cells,
    Side,
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
