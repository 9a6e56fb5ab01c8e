"""Question: which figures show how full a device's memory is, and of what?

Every function is pure: document in, plotly figure out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from moeprof.answers import story
from moeprof.answers.bars import Bars, Figure, Fill, Json, horizontal, plotly_text
from moeprof.answers.colours import CONTENTS, HELD, HELD_BESIDE, MIXED, PHASES, colour
from moeprof.answers.document import Document, Value, figures_of, rows
from moeprof.answers.memory_layers import Band, Row, Scale, bands, limit_of, limit_shape, rows_of
from moeprof.answers.values import whole
from moeprof.units import format_bytes, format_percent

OVER_PROGRAM = (
    "Over the program: What the compiler plans for one device, from the first operation of the "
    "step to the last, each loop once; the axis counts places taken and given back, not time. "
    "Grey stays throughout, stripes are what the forward pass makes and the backward pass still "
    "finds. The strips below say which component runs, and in which phase."
)
AT_PEAK = "At the peak: The largest kinds of tensors, and the components that wrote them."
_NAME_WIDTH, _LINE_WIDTH = 34, 70
_MOST_KINDS = 8
_LEAST_LABELLED = 0.12
"""A phase is named in the strip where it has this share of the program in one piece."""


def over_program(document: Document) -> Figure | None:
    """Layers of memory over the points of the program, the peak marked."""
    rows = rows_of(document)
    if not rows:
        return None
    told = figures_of(document["drawings"]["heap"])
    stretches = list({row.first: row for row in rows}.values())
    peak_bytes, end = whole(told["program_peak"]), whole(told["last_point"]) + 1
    scale = Scale(peak_bytes)
    limit = limit_of(told, peak_bytes)
    edges = [*(row.first for row in stretches), end]
    data = [_layer(band, edges, scale) for band in bands(rows, peak_bytes)]
    data += [_total(rows, stretches, end, scale), *_strips(stretches, end)]
    layout = _layout(scale, end, limit or peak_bytes)
    layout["annotations"] = [_peak_note(rows, told, scale)]
    if limit:
        layout["shapes"] = [limit_shape(limit, scale)]
    return {"data": data, "layout": layout}


def at_peak(document: Document) -> Figure | None:
    """One bar per kind of tensor at the peak, by the component that wrote it."""
    sizes: dict[str, dict[str, int]] = {}
    for row in rows(document, "memory"):
        parts = sizes.setdefault(str(row["content"]), {})
        component = str(row["component"])
        parts[component] = parts.get(component, 0) + whole(row["size_bytes"])
    if not sizes:
        return None
    whole_bytes = sum(sum(parts.values()) for parts in sizes.values())
    scale = Scale(whole_bytes)
    largest = sorted(sizes, key=lambda content: -sum(sizes[content].values()))[:_MOST_KINDS]
    labels = [f"{c}  {format_percent(sum(sizes[c].values()) / whole_bytes)}" for c in largest]
    pieces = [
        _piece(content, component, size, largest.index(content), scale)
        for content in largest
        for component, size in sorted(sizes[content].items(), key=lambda item: -item[1])
    ]
    return horizontal(pieces, labels, scale.unit, narrow=largest)


def _layer(band: Band, edges: Sequence[int], scale: Scale) -> Json:
    """One layer; it steps at each edge, and is as at the last stretch up to the end."""
    sizes = [band.sizes.get(first, 0) for first in edges[:-1]]
    name = plotly_text(band.name)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(edges),
        "y": [scale(size) for size in (*sizes, sizes[-1])],
        "stackgroup": "memory",
        "line": {"width": 0, "shape": "hv", "color": band.fill.colour},
        "fillcolor": band.fill.colour,
        "fillpattern": band.fill.marker()["pattern"],
        "hoverinfo": "skip",
    }


def _total(rows: Sequence[Row], stretches: Sequence[Row], end: int, scale: Scale) -> Json:
    """The outline of all layers, whose hover text tells what is there."""
    by_stretch = {first: list(part) for first, part in groupby(rows, lambda row: row.first)}
    sums = [sum(row.size_bytes for row in by_stretch[at.first]) for at in stretches]
    texts = [_there(by_stretch[at.first], size) for at, size in zip(stretches, sums, strict=True)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "in all",
        "showlegend": False,
        "x": [*(at.first for at in stretches), end],
        "y": [scale(size) for size in (*sums, sums[-1])],
        "line": {"width": 1, "shape": "hv", "color": MIXED},
        "customdata": [*texts, texts[-1]],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _there(rows: Sequence[Row], in_all: int) -> str:
    """Bytes and op at a stretch, and its largest tensors, one a line."""
    at = rows[0]
    largest = sorted(rows, key=lambda row: -row.size_bytes)[:_MOST_KINDS]
    lines = [
        f"<b>{format_bytes(in_all)}</b> at point {at.point}",
        f"{plotly_text(at.op, _NAME_WIDTH)} ({plotly_text(_running(at))})" if at.op else "",
        *(
            f"{format_bytes(row.size_bytes)}  {plotly_text(_tensor(row), _LINE_WIDTH)}"
            for row in largest
        ),
    ]
    return "<br>".join(line for line in lines if line)


def _tensor(row: Row) -> str:
    return f"{row.content}, {story.label(row.component)}" if row.component else row.content


def _running(row: Row) -> str:
    part = story.label(row.running) if row.running else "unknown"
    return part if row.phase in ("", "other") else f"{row.phase}, {part}"


class _Piece(NamedTuple):
    """Neighbouring stretches in which the same component or phase runs."""

    value: str
    start: int
    stop: int


def _strips(stretches: Sequence[Row], end: int) -> list[Json]:
    """What runs: components above, phases below."""
    edges = [*(row.first for row in stretches), end]
    components = _pieces([row.running for row in stretches], edges)
    phases = _pieces([row.phase for row in stretches], edges)
    colours = [colour(piece.value) for piece in components]
    marker: dict[str, Json] = {"color": colours, "line": {"width": 0}}
    strips = [_strip("components that run", components, 1.05, marker)]
    for phase in dict.fromkeys(piece.value for piece in phases):
        mine = [piece for piece in phases if piece.value == phase]
        marker = Fill(MIXED, PHASES.get(phase, ".")).marker()
        long = (piece.stop - piece.start >= _LEAST_LABELLED * end for piece in mine)
        texts = [plotly_text(phase) if is_long else "" for is_long in long]
        strips.append({**_strip(plotly_text(phase), mine, 0.0, marker), "text": texts})
    return list(strips)


def _pieces(values: Sequence[str], edges: Sequence[int]) -> list[_Piece]:
    found = []
    for value, group in groupby(range(len(values)), lambda place: values[place]):
        places = list(group)
        found.append(_Piece(value, edges[places[0]], edges[places[-1] + 1]))
    return found


def _strip(
    name: str, pieces: Sequence[_Piece], base: float, marker: Mapping[str, Json]
) -> dict[str, Json]:
    return {
        "type": "bar",
        "name": name,
        "showlegend": False,
        "x": [(piece.start + piece.stop) / 2 for piece in pieces],
        "width": [piece.stop - piece.start for piece in pieces],
        "y": [0.95] * len(pieces),
        "base": base,
        "yaxis": "y2",
        "constraintext": "none",
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "#000000", "size": 10},
        "hoverinfo": "skip",
        "marker": marker,
    }


def _layout(scale: Scale, end: int, top_bytes: int) -> dict[str, Json]:
    return {
        "height": 580,
        "barmode": "overlay",
        "hovermode": "x",
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": -0.14,
            "yanchor": "top",
            "traceorder": "normal",
        },
        "margin": {"l": 56, "r": 16, "t": 122, "b": 8},
        "xaxis": {
            "range": [0, end],
            "anchor": "y2",
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": scale.unit},
            "domain": [0.11, 1],
            "range": [0, 1.03 * scale(top_bytes)],
        },
        "yaxis2": {"domain": [0, 0.09], "range": [0, 2], "visible": False, "fixedrange": True},
    }


def _peak_note(rows: Sequence[Row], told: Mapping[str, Value], scale: Scale) -> Json:
    """The peak, where it is, what runs there, and the two kinds of tensors that fill it most."""
    point, last = whole(told["peak_point"]), whole(told["last_point"])
    there = [row for row in rows if row.point == point]
    at = there[0]
    size = whole(told["program_peak"])
    limits = (("device_memory", "the device"), ("pool", "the pool"))
    of = [
        f", {format_percent(size / limit)} of {name}"
        for key, name in limits
        if (limit := whole(told[key]))
    ]
    lines = [
        f"<b>peak {format_bytes(size)}</b>{of[-1] if of else ''}",
        f"at point {point} of {last}",
    ]
    if op := str(told["peak_op"] or ""):
        lines += [plotly_text(op, _NAME_WIDTH), plotly_text(_running(at))]
    sizes: dict[str, int] = {}
    for row in there:
        sizes[row.content] = sizes.get(row.content, 0) + row.size_bytes
    for content in sorted(sizes, key=lambda name: -sizes[name])[:2]:
        lines.append(f"{format_percent(sizes[content] / size)} {plotly_text(content)}")
    is_right = point > last / 2
    return {
        "x": at.first,
        "y": scale(size),
        "text": "<br>".join(lines),
        "showarrow": True,
        "arrowhead": 2,
        "arrowsize": 0.9,
        "arrowcolor": HELD["weights"][0],
        "ax": -12 if is_right else 12,
        "ay": -14,
        "xanchor": "right" if is_right else "left",
        "yanchor": "bottom",
        "align": "left",
        "font": {"size": 12},
    }


def _piece(content: str, component: str, size: int, place: int, scale: Scale) -> Bars:
    part = (colour(component), "") if component else HELD.get(content, HELD_BESIDE)
    fill = Fill(*CONTENTS.get(content, part))
    name = story.label(component) if component else content
    return Bars(name, fill, [place], [scale(size)], [format_bytes(size)], "memory", False)
