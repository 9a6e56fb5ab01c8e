"""Question: which figure shows how close each op comes to what the device can do?

Every function is pure: document in, plotly figure out. The roofs are those that the rows' shares
are shares of, so that a point's place below them and its share in the table are one figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeprof.answers import story
from moeprof.answers.bars import Bars, Figure, Fill, Json, horizontal, plotly_text
from moeprof.answers.colours import colour, in_order
from moeprof.answers.document import Document, Value, drawn_rows, figures_of
from moeprof.answers.values import number, printable, shortened, written
from moeprof.units import format_ns, format_percent

ROOFS = (
    "Ops below the roofs of the device: Under the slope memory bounds an op, under a flat roof the "
    "matrix units. The larger a mark the more time it takes, against the largest one here; the gap "
    "up to the roof is what an ideal kernel would gain."
)
BEYOND = (
    "Time lost against the roof: The ops that lose most. Exchanges are not here, as links bound "
    "them."
)

Row = Mapping[str, Value]


@dataclass(frozen=True)
class _Scale:
    """The time of all ops, that of the largest mark, and what times are taken over."""

    whole_ns: float
    largest_ns: float
    basis: str


_DRAWING = "roofline_points"
_LINE = "#7d858d"
_LEAST_PX, _LARGEST_PX = 7, 44
_FILLED, _HOLLOW = "circle", "circle-open"
_MOST_BARS = 20
_OP_WIDTH = 20
_AT_ROOF = Fill("#0a6fb5")
_BEYOND = Fill("#dd6a1f", "/")
_NO_DEVICE = "No roofs: the device is not known; name it with --hardware"
_NO_PEAK = "No flat roof: no peak is stated for these element types"
_FEW_DECADES = 2
"""Up to so many the axis has ticks between the powers of ten too."""
_MARGIN = 1.8
"""Room around points on a logarithmic axis, as a factor."""


def roofline(document: Document) -> Figure | None:
    """Ops by FLOPs per byte and FLOP/s achieved, below the roofs of the device."""
    ops = _ops(document)
    points = [row for row in ops if _is_placed(row)]
    if not points:
        return None
    peaks, bandwidth = _peaks(points), _bandwidth(ops)
    x_range, y_range = _ranges(points, peaks, bandwidth)
    components = in_order(str(row["component"]) for row in points)
    scale = _Scale(
        whole_ns=number(figures_of(document["drawings"][_DRAWING])["op_time"]),
        largest_ns=max(number(row["per_step_ns"]) for row in points),
        basis=story.basis(document),
    )
    traces = [
        _points(name, [row for row in points if row["component"] == name], scale, peaks)
        for name in components
    ]
    x_title = "FLOP per byte of memory traffic" + _left_out(document, points)
    layout: dict[str, Json] = {
        "height": 500,
        "hovermode": "closest",
        "showlegend": True,
        "legend": {
            "orientation": "h", "x": 0, "y": 1.01, "xanchor": "left", "yanchor": "bottom",
            "itemsizing": "constant",
        },
        "margin": {"l": 8, "r": 16, "t": 48, "b": 88},
        "xaxis": _axis(x_title, x_range),
        "yaxis": {**_axis("TFLOP/s achieved", y_range), "automargin": True},
        "annotations": _names(peaks, bandwidth, x_range, y_range, _without_peak(points, peaks)),
    }  # fmt: skip
    return {"data": [*_roofs(peaks, bandwidth, x_range), *traces], "layout": layout}


def roof_time(document: Document) -> Figure | None:
    """One bar per op: the time at the roof, and what is beyond it, the largest such first.

    An exchange has no roof here, as a link bounds it.
    """
    ops = [row for row in _ops(document) if row["roofline_ns"] is not None]
    if not ops:
        return None
    ops = sorted(ops, key=_beyond_ns, reverse=True)[:_MOST_BARS]
    best = [min(number(row["roofline_ns"]), number(row["per_step_ns"])) for row in ops]
    bars = [
        _bars("at the roof", _AT_ROOF, best),
        _bars("beyond it", _BEYOND, [_beyond_ns(row) for row in ops]),
    ]
    names = [shortened(printable(str(row["op"])), _OP_WIDTH) for row in ops]
    parts = [story.label(str(row["component"])) for row in ops]
    labels = [f"{name} ({part})" for name, part in zip(names, parts, strict=True)]
    return horizontal(bars, labels, f"ms {story.basis(document)}", narrow=names)


def _ops(document: Document) -> Sequence[Row]:
    """The rows of the drawing."""
    drawing = document["drawings"].get(_DRAWING)
    return drawn_rows(drawing) if drawing else []


def _beyond_ns(row: Row) -> float:
    return max(number(row["per_step_ns"]) - number(row["roofline_ns"]), 0.0)


def _is_placed(row: Row) -> bool:
    """Whether both axes have a place for it: logarithms have none for nothing."""
    return all(number(row[name]) > 0 for name in ("intensity", "tflop_per_s"))


def _peaks(rows: Sequence[Row]) -> dict[str, float]:
    """TFLOP/s by element type, of those whose peak is stated."""
    return {
        str(row["dtype"]): number(row["tflop_per_s"]) / number(row["compute_share"])
        for row in rows
        if number(row["compute_share"]) > 0
    }


def _without_peak(rows: Sequence[Row], peaks: Mapping[str, float]) -> list[str]:
    """Element types that have no flat roof, where others have one."""
    found = {str(row["dtype"]) for row in rows if row["dtype"]}
    return sorted(found - set(peaks)) if peaks else []


def _bandwidth(rows: Sequence[Row]) -> float | None:
    """TB/s of the device's memory; None where it is not stated."""
    return next(
        (
            number(row["tb_per_s"]) / number(row["memory_share"])
            for row in rows
            if number(row["memory_share"]) > 0
        ),
        None,
    )


def _ranges(
    points: Sequence[Row], peaks: Mapping[str, float], bandwidth: float | None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both axes, wide enough for all points and for the corners of the roofs."""
    x = [number(row["intensity"]) for row in points]
    y = [number(row["tflop_per_s"]) for row in points]
    if bandwidth:
        x += [4 * peak / bandwidth for peak in peaks.values()]
    y += list(peaks.values())
    return (min(x) / _MARGIN, max(x) * _MARGIN), (min(y) / _MARGIN, max(y) * _MARGIN)


def _roofs(
    peaks: Mapping[str, float], bandwidth: float | None, x_range: tuple[float, float]
) -> list[Json]:
    """The slope of memory bandwidth up to the highest peak, and a flat roof per element type."""
    least, most = x_range
    lines: list[tuple[list[Json], list[Json], str]] = []
    top = max(peaks.values(), default=math.inf)
    if bandwidth:
        ridge = min(top / bandwidth, most)
        lines.append(([least, ridge], [least * bandwidth, ridge * bandwidth], "solid"))
    for peak in sorted(set(peaks.values())):
        begin = max(peak / bandwidth, least) if bandwidth else least
        lines.append(([begin, most], [peak, peak], "solid" if peak == top else "dash"))
    return [
        {
            "type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip",
            "showlegend": False, "line": {"color": _LINE, "width": 2, "dash": dash},
        }
        for x, y, dash in lines
    ]  # fmt: skip


def _names(
    peaks: Mapping[str, float],
    bandwidth: float | None,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    without: Sequence[str],
) -> list[Json]:
    """What each roof is; where there is none, why."""
    by_peak: dict[float, list[str]] = {}
    for dtype, peak in sorted(peaks.items()):
        by_peak.setdefault(peak, []).append(dtype)
    named = [
        _note(f"{', '.join(dtypes)}: {peak:,.0f} TFLOP/s", x_range[1], peak, "right", "bottom")
        for peak, dtypes in by_peak.items()
    ]
    if bandwidth:
        at = max(x_range[0], y_range[0] / bandwidth)
        named.append(_note(f"memory: {bandwidth:.3g} TB/s", at, at * bandwidth, "left", "top"))
    if not peaks:
        why = _NO_PEAK if bandwidth else _NO_DEVICE
        named.append(_note(why, x_range[0], y_range[1], "left", "top"))
    if without:
        why = f"hollow: no peak is stated for {', '.join(without)}"
        named.append(_note(why, x_range[0], y_range[1], "left", "top"))
    return named


def _note(text: str, x: float, y: float, xanchor: str, yanchor: str) -> Json:
    """Text at a place of logarithmic axes."""
    return {
        "text": plotly_text(text, 80), "x": math.log10(x), "y": math.log10(y),
        "xanchor": xanchor, "yanchor": yanchor, "showarrow": False, "font": {"size": 12},
    }  # fmt: skip


def _points(component: str, rows: Sequence[Row], scale: _Scale, peaks: Mapping[str, float]) -> Json:
    """Marks of one component, their areas as their times, the larger ones below.

    Hollow are those whose element type has no flat roof where others have one.
    """
    ordered = sorted(rows, key=lambda row: -number(row["per_step_ns"]))
    without = _without_peak(rows, peaks)
    is_hollow = [str(row["dtype"]) in without for row in ordered]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plotly_text(story.label(component)),
        "x": [row["intensity"] for row in ordered],
        "y": [row["tflop_per_s"] for row in ordered],
        "text": [plotly_text(str(row["op"])) for row in ordered],
        "customdata": [_told(row, scale) for row in ordered],
        "hovertemplate": "<b>%{text}</b><br>%{customdata}<extra></extra>",
        "marker": {
            "color": colour(component),
            "size": [_size(row, scale) for row in ordered],
            "symbol": [_HOLLOW if hollow else _FILLED for hollow in is_hollow],
            "opacity": 0.85,
            "line": {"color": "#ffffff", "width": [2 if hollow else 1 for hollow in is_hollow]},
        },
    }


def _size(row: Row, scale: _Scale) -> float:
    share = number(row["per_step_ns"]) / scale.largest_ns if scale.largest_ns else 0.0
    return _LEAST_PX + (_LARGEST_PX - _LEAST_PX) * math.sqrt(share)


def _told(row: Row, scale: _Scale) -> str:
    """What an op is, how long it takes and how close it comes to its roof."""
    what = ", ".join(
        plotly_text(text)
        for text in (story.label(str(row["component"])), str(row["phase"]), str(row["dtype"]))
        if text
    )
    time = number(row["per_step_ns"])
    share = time / scale.whole_ns if scale.whole_ns else 0.0
    return (
        f"{what}<br>{format_ns(time)} {scale.basis}, {format_percent(share)} of op time<br>"
        f"{written(row['tflop_per_s'], 'TFLOP/s')} at {written(row['intensity'], 'FLOP/byte')}<br>"
        f"{_nearness(row)}"
    )


def _nearness(row: Row) -> str:
    """How close an op comes to its roof: beyond it a share would promise what no kernel has."""
    time, roof = number(row["per_step_ns"]), number(row["roofline_ns"])
    if not (roof and time):
        return "its roof is not known"
    if time < roof:
        why = ": caches hold part of what it reads" if row["bound"] == "memory" else ""
        return f"above its {row['bound']} roof{why}"
    bound = f", bound by {row['bound']}" if row["bound"] else ""
    return f"{format_percent(roof / time)} of its roof{bound}"


def _left_out(document: Document, points: Sequence[Row]) -> str:
    """How much of the ops' time has no place, as it multiplies nothing or is not known."""
    figures = figures_of(document["drawings"][_DRAWING])
    whole_ns, ops = number(figures["op_time"]), int(number(figures["ops"]))
    rest_ns = whole_ns - sum(number(row["per_step_ns"]) for row in points)
    if ops == len(points) or not whole_ns:
        return ""
    is_cut = number(figures["cheaper_ops"]) > 0
    return (
        f"<br>not here: {ops - len(points)} of {ops} ops, {format_percent(rest_ns / whole_ns)} of "
        f"op time:<br>without matrix FLOPs, {'cheaper, ' if is_cut else ''}or not known"
    )


def _axis(title: str, ends: tuple[float, float]) -> dict[str, Json]:
    return {
        "type": "log",
        "title": {"text": title, "standoff": 8},
        "range": [math.log10(end) for end in ends],
        "dtick": 1 if math.log10(ends[1] / ends[0]) > _FEW_DECADES else "D2",
        "tickformat": ",~g",
        "zeroline": False,
    }


def _bars(name: str, fill: Fill, lengths_ns: Sequence[float]) -> Bars:
    lengths = [ns / 1e6 for ns in lengths_ns]
    texts = [format_ns(ns) for ns in lengths_ns]
    return Bars(name, fill, range(len(lengths)), lengths, texts, name, True)
