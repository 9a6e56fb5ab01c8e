"""Question: which figures show what changed between two runs?

Every function is pure: document in, plotly figure out. A bar starts at zero and is as long as the
change; its whisker is the noise, so that a whisker that reaches zero says "perhaps nothing".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeprof.answers import story
from moeprof.answers.bars import Figure, Fill, Json, plotly_text
from moeprof.answers.colours import HATCHED, STEP_PARTS, colour
from moeprof.answers.values import number, printable, signed
from moeprof.reports.comparison import words
from moeprof.reports.comparison.document import ComparisonDocument, Row
from moeprof.units import format_bytes, format_ns

_MOST = 16
_ROW_PX = 30
_AXIS_PX = 52
_WHISKER = "#7d858d"
_FRAME = 0.8
"""A whisker is shown up to this many times the largest change: longer ones would hide the bars."""
_STEP = Fill("#5b646d")
_PALE = 0.4


@dataclass(frozen=True)
class Change:
    """One bar: a change and its noise in the axis' unit (None: not known), and what it says."""

    name: str
    fill: Fill
    change: float
    noise: float | None
    told: str
    is_clear: bool = True


def step(document: ComparisonDocument) -> Figure | None:
    """The step and the times that add up to it; ms per step."""
    whole = words.step_row(document)
    if whole is None:
        return None
    rows = [whole, *words.step_parts(document)]
    fills = [_STEP, *(Fill(*STEP_PARTS[str(row["part"])]) for row in rows[1:])]
    names = ["whole step", *(story.label(str(row["part"])) for row in rows[1:])]
    return _diverging(
        [_time(row, name, fill) for row, name, fill in zip(rows, names, fills, strict=True)],
        "ms per step, new less base",
    )


def components(document: ComparisonDocument) -> Figure | None:
    """One bar per component whose op time changed by enough to matter, the largest change first."""
    whole = words.total(document)
    rows = [row for row in words.components(document) if whole and words.is_worth(row, whole)]
    found = [(row, str(row["component"])) for row in rows[:_MOST]]
    return _diverging(
        [_time(row, story.label(name), _fill(name)) for row, name in found],
        "ms per device and step, new less base",
    )


def buffers(document: ComparisonDocument) -> Figure | None:
    """One bar per kind of buffer that one peak holds more of than the other; MiB."""
    changes = [
        Change(
            name=f"{words.buffer_kind(row)} {printable(str(row['shape']))}".strip(),
            fill=_fill(str(row["component"]) or "other"),
            change=number(row["change_bytes"]) / 2**20,
            noise=None,
            told=f"{signed(number(row['change_bytes']), format_bytes)}, "
            f"{row['base_buffers']} → {row['new_buffers']} buffers",
        )
        for row in words.buffers(document)[:_MOST]
    ]
    return _diverging(changes, "MiB at the peak, new less base")


def _fill(component: str) -> Fill:
    return Fill(colour(component), "/" if component in HATCHED else "")


def _time(row: Row, name: str, fill: Fill) -> Change:
    noise = row["noise_ns"]
    times = words.from_to(format_ns, row["base_ns"], row["new_ns"])
    return Change(
        name=name,
        fill=fill,
        change=number(row["change_ns"]) / 1e6,
        noise=noise / 1e6 if isinstance(noise, int | float) else None,
        told=f"{signed(number(row['change_ns']), format_ns)} ({times}), {row['verdict']}",
        is_clear=row["verdict"] != "within noise",
    )


def _diverging(changes: Sequence[Change], unit: str) -> Figure | None:
    """Bars to both sides of zero; pale where the noise explains them."""
    if not any(change.change for change in changes):
        return None
    names = [plotly_text(change.name) for change in changes]
    layout: dict[str, Json] = {
        "height": 8 + _AXIS_PX + _ROW_PX * len(changes),
        "barmode": "overlay",
        "bargap": 0.3,
        "showlegend": False,
        "margin": {"l": 8, "r": 16, "t": 8, "b": _AXIS_PX},
        "meta": {"narrow": [plotly_text(change.name, 20) for change in changes]},
        "xaxis": {
            "title": {"text": unit},
            "range": _range(changes),
            "zeroline": True,
            "zerolinewidth": 2,
        },
        "yaxis": {
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
            "tickmode": "array",
            "tickvals": list(range(len(changes))),
            "ticktext": names,
        },
    }
    return {"data": [_bar(change, place) for place, change in enumerate(changes)], "layout": layout}


def _bar(change: Change, place: int) -> Json:
    trace: dict[str, Json] = {
        "type": "bar",
        "orientation": "h",
        "x": [change.change],
        "y": [place],
        "text": [plotly_text(change.name)],
        "textposition": "none",
        "customdata": [plotly_text(change.told, 120)],
        "hovertemplate": "%{text}<br>%{customdata}<extra></extra>",
        "marker": change.fill.marker(),
        "opacity": 1.0 if change.is_clear else _PALE,
        "showlegend": False,
    }
    if change.noise is not None:
        whisker: Json = {
            "type": "data", "array": [change.noise], "color": _WHISKER, "thickness": 1.2,
            "width": 4,
        }  # fmt: skip
        trace["error_x"] = whisker
    return trace


def _range(changes: Sequence[Change]) -> list[float]:
    """From the furthest end to the left of zero to that to the right, whiskers cut at `_FRAME`."""
    most = max(abs(change.change) for change in changes)
    ends = [
        change.change + sign * min(change.noise or 0.0, _FRAME * most)
        for change in changes
        for sign in (-1, 1)
    ]
    low, high = min(0.0, *ends), max(0.0, *ends)
    margin = 0.04 * (high - low)
    return [low - margin, high + margin]
