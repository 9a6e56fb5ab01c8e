"""Question: which figure shows what the stages of a pipeline do when?

Pure: drawing in, plotly figure out. One row per stage, one bar per piece of work with the number of
its microbatch in it; time without work is grey, and says why the stage is idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from moeprof.answers.bars import Figure, Fill, Json
from moeprof.answers.colours import ink_on
from moeprof.answers.document import Document, Drawing, Value, drawn_rows, rows
from moeprof.answers.values import number
from moeprof.units import format_ns

GRID = (
    "What each stage does when: A piece of work has the number of its microbatch, by the order of "
    "the schedule. Later chunks of a stage are paler; grey is idle time, hover over it to see why."
)
KINDS = {
    "forward": ("forward", Fill("#0a6fb5")),
    "backward": ("backward", Fill("#dd6a1f")),
    "weight_gradient": ("weight gradient", Fill("#009e73")),
    "several": ("several kinds in turn", Fill("#8f9fc4")),
    "ramp": ("idle in the ramp", Fill("#a3a9af", "/")),
    "gap": ("idle in gaps", Fill("#a3a9af", ".")),
}
"""Name and fill of each kind of time, in the order of the legend."""
_IDLE = ("ramp", "gap")
_CAUSES = {
    "fill_ns": "to fill and drain",
    "imbalance_ns": "as stages are unequal",
    "wait_ns": "in transfers and waits",
}
_IDLE_OPACITY = 0.45
_FADED = 0.5
"""How much of white the last chunk of a stage has in its colour."""
_ROW_PX, _LEAST_PX, _TALLEST_PX = 30, 7, 900
_LEGEND_PX, _AXIS_PX = 40, 50


class _Piece(TypedDict):
    """One row of the drawing."""

    stage: int
    kind: str
    microbatch: int
    chunk: int
    start_ns: int
    duration_ns: int
    pieces: int
    next_needs: str


def stage_grid(document: Document) -> Figure | None:
    """The pipeline of a run over time."""
    drawing = document["drawings"].get("stage_grid")
    return grid_figure(drawing, rows(document, "pipeline")) if drawing else None


def grid_figure(
    drawing: Drawing, stages: Sequence[Mapping[str, Value]], longest_ns: float = 0.0
) -> Figure | None:
    """Stages over time; `stages` are the rows of the pipeline's table, which say why they idle.

    The axis ends at ``longest_ns`` where that is later: grids that are compared have one scale.
    """
    pieces = _pieces(drawing)
    if not pieces:
        return None
    numbers = sorted({piece["stage"] for piece in pieces})
    chunks = max(piece["chunk"] for piece in pieces) + 1
    why = {int(number(row["stage"])): _causes(row) for row in stages}
    keys = [(kind, chunk) for kind in KINDS for chunk in range(-1, chunks)]
    traces = [
        _bars(kind, chunk, chunks, mine, why)
        for kind, chunk in keys
        if (mine := [p for p in pieces if (p["kind"], p["chunk"]) == (kind, chunk)])
    ]
    for first in {trace["legendgroup"]: trace for trace in reversed(traces)}.values():
        first["showlegend"] = True
    height_px = min(_ROW_PX * len(numbers), max(480, _LEAST_PX * len(numbers)), _TALLEST_PX)
    layout: dict[str, Json] = {
        "height": height_px + _LEGEND_PX + _AXIS_PX,
        "barmode": "overlay",
        "bargap": 0.12,
        "hovermode": "closest",
        "showlegend": True,
        "legend": {
            "orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom",
            "traceorder": "normal",
        },
        "uniformtext": {"mode": "hide", "minsize": 9},
        "margin": {"l": 8, "r": 16, "t": _LEGEND_PX, "b": _AXIS_PX},
        "xaxis": {
            "title": {"text": "ms since the iteration began", "standoff": 8},
            "range": [0, max(longest_ns, *map(_end_ns, pieces)) / 1e6],
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": "stage", "standoff": 6},
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [str(number) for number in numbers],
        },
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _pieces(drawing: Drawing) -> list[_Piece]:
    return cast(list[_Piece], drawn_rows(drawing))


def _end_ns(piece: _Piece) -> int:
    return piece["start_ns"] + piece["duration_ns"]


def _bars(
    kind: str, chunk: int, chunks: int, pieces: Sequence[_Piece], why: Mapping[int, str]
) -> dict[str, Json]:
    """Pieces of one kind and chunk: later chunks are paler."""
    name, fill = KINDS[kind]
    shade = _faded(fill.colour, _FADED * chunk / (chunks - 1)) if chunk > 0 else fill.colour
    marker = Fill(shade, fill.shape).marker()
    if kind not in _IDLE:
        marker["line"] = {"width": 0.5, "color": "#ffffff"}
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "legendgroup": kind,
        "showlegend": False,
        "opacity": _IDLE_OPACITY if kind in _IDLE else 1.0,
        "y": [str(piece["stage"]) for piece in pieces],
        "base": [piece["start_ns"] / 1e6 for piece in pieces],
        "x": [piece["duration_ns"] / 1e6 for piece in pieces],
        "text": [str(p["microbatch"]) if p["microbatch"] >= 0 else "" for p in pieces],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": ink_on(shade), "size": 11},
        "customdata": [_told(name, piece, chunks, why) for piece in pieces],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": marker,
    }


def _told(name: str, piece: _Piece, chunks: int, why: Mapping[int, str]) -> str:
    """What a bar is, when, and how long; of idle time why the stage is idle."""
    place = f"stage {piece['stage']}: {name}"
    if piece["microbatch"] >= 0:
        place += f", microbatch {piece['microbatch']}"
    if chunks > 1 and piece["chunk"] >= 0:
        place += f", chunk {piece['chunk']}"
    if piece["pieces"] > 1:
        place += f", {piece['pieces']} in a row"
    time = f"{format_ns(piece['duration_ns'])} from {format_ns(piece['start_ns'])} on"
    if piece["kind"] not in _IDLE:
        return f"{place}<br>{time}"
    waits = f"<br>the next piece needs {piece['next_needs']}" if piece["next_needs"] else ""
    return f"{place}<br>{time}{waits}{why.get(piece['stage'], '')}"


def _causes(row: Mapping[str, Value]) -> str:
    """Why a stage is idle in all of the iteration."""
    parts = [
        f"{format_ns(number(row[column]))} {words}"
        for column, words in _CAUSES.items()
        if number(row[column])
    ]
    if not parts:
        return ""
    return f"<br>in all idle {format_ns(number(row['idle_ns']))}:<br>{'<br>'.join(parts)}"


def _faded(colour: str, white: float) -> str:
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)
