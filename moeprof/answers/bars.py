"""Question: how does plotly.js draw bars with names out of a trace?

Figures are plain dicts. Colours of text, grid and background are the page's; names are escaped,
as plotly.js reads markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeprof.answers.document import Value
from moeprof.answers.values import number, printable, shortened
from moeprof.units import format_ns

Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None
Figure = dict[str, Json]

_NAME_WIDTH = 40
_NARROW_WIDTH = 20
_ROW_PX = 28
_TWIN_PX = 12
_AXIS_PX = 48
_LEGEND_PX = 36
_LEGEND: dict[str, Json] = {
    "orientation": "h",
    "x": 0,
    "y": 1,
    "xanchor": "left",
    "yanchor": "bottom",
    "traceorder": "normal",
}


@dataclass(frozen=True)
class Fill:
    """A colour with a pattern of white lines over it; `shape` is plotly's name, empty for none."""

    colour: str
    shape: str = ""

    def marker(self) -> dict[str, Json]:
        """The fill as plotly's marker."""
        pattern: dict[str, Json] = {
            "shape": self.shape,
            "bgcolor": self.colour,
            "fgcolor": "#ffffff",
            "fgopacity": 0.65,
            "size": 7,
            "solidity": 0.3,
        }
        return {"color": self.colour, "pattern": pattern, "line": {"width": 0}}


@dataclass(frozen=True)
class Bars:
    """Bars of one kind: a length and a text per bar, each on the row that `places` names.

    `key` is the entry of the legend that stands for these bars; `is_key` makes it that entry.
    """

    name: str
    fill: Fill
    places: Sequence[int]
    lengths: Sequence[float]
    texts: Sequence[str]
    key: str
    is_key: bool


def horizontal(
    bars: Sequence[Bars],
    labels: Sequence[str],
    unit: str,
    *,
    barmode: str = "stack",
    narrow: Sequence[str] = (),
) -> Figure:
    """Rows named by `labels`, or by `narrow` (where given) on a narrow screen.

    They stand at whole numbers: two names cut alike stay two rows.
    """
    names = [plotly_text(label) for label in labels]
    has_legend = len({kind.key for kind in bars}) > 1
    kinds = len(bars) if barmode == "group" else 1
    top_px = _LEGEND_PX if has_legend else 8
    layout: dict[str, Json] = {
        "height": top_px + _AXIS_PX + len(names) * (_ROW_PX + _TWIN_PX * (kinds - 1)),
        "barmode": barmode,
        # The page puts these on the axis where the figure is narrow.
        "meta": {"narrow": [plotly_text(label, _NARROW_WIDTH) for label in narrow or labels]},
        "bargap": 0.25,
        "showlegend": has_legend,
        "legend": _LEGEND,
        "margin": {"l": 8, "r": 16, "t": top_px, "b": _AXIS_PX},
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": {
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
            "tickmode": "array",
            "tickvals": list(range(len(names))),
            "ticktext": names,
        },
    }
    return {"data": [_row_trace(kind, names) for kind in bars], "layout": layout}


def columns(bars: Sequence[Bars], labels: Sequence[str], *, axis: str, unit: str) -> Figure:
    """Columns named by `labels`, from left to right; kinds are stacked."""
    names = [plotly_text(label) for label in labels]
    has_legend = len(bars) > 1
    top_px = _LEGEND_PX if has_legend else 12
    layout: dict[str, Json] = {
        "height": 280,
        "barmode": "stack",
        # A few columns stay columns instead of walls.
        "bargap": max(0.2, 1 - len(names) / 12),
        "showlegend": has_legend,
        "legend": _LEGEND,
        "margin": {"l": 60, "r": 16, "t": top_px, "b": _AXIS_PX},
        "xaxis": {
            "title": {"text": axis},
            "showgrid": False,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
        },
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
    }
    return {"data": [_column_trace(kind, names) for kind in bars], "layout": layout}


def plotly_text(name: str, width: int = _NAME_WIDTH) -> str:
    """A name as plotly.js shows it unchanged: cut, invisible characters spelled, no markup."""
    import html

    return html.escape(shortened(printable(name), width), quote=False)


def _row_trace(bars: Bars, names: Sequence[str]) -> Json:
    labels = [names[place] for place in bars.places]
    return {
        **_trace(bars, labels),
        "orientation": "h",
        # plotly.js leaves kinds without a bar out of the legend: one that is nowhere stays in.
        "x": list(bars.lengths) or [None],
        "y": list(bars.places) or [None],
    }


def _column_trace(bars: Bars, names: Sequence[str]) -> Json:
    labels = [names[place] for place in bars.places]
    return {**_trace(bars, labels), "x": labels, "y": list(bars.lengths)}


def _trace(bars: Bars, labels: Sequence[str]) -> dict[str, Json]:
    return {
        "type": "bar",
        "name": plotly_text(bars.name),
        "text": list(labels),
        "textposition": "none",
        "customdata": [plotly_text(text) for text in bars.texts],
        "hovertemplate": "%{text}<br>%{fullData.name}: %{customdata}<extra></extra>",
        "marker": bars.fill.marker(),
        "legendgroup": plotly_text(bars.key),
        "showlegend": bars.is_key,
    }


def durations(name: str, fill: Fill, durations_ns: Sequence[float]) -> Bars:
    """Bars of one kind, a row each, their lengths in milliseconds."""
    return placed_durations(name, fill, dict(enumerate(durations_ns)))


def placed_durations(name: str, fill: Fill, durations_ns: Mapping[int, float]) -> Bars:
    """The same by row; a row that is not named has no bar of this kind."""
    lengths = [duration_ns / 1e6 for duration_ns in durations_ns.values()]
    texts = [format_ns(duration_ns) for duration_ns in durations_ns.values()]
    return Bars(name, fill, list(durations_ns), lengths, texts, name, True)


def device_name(row: Mapping[str, Value]) -> str:
    """A device by its rank, or by host and ordinal where no rank is known."""
    if number(row["rank"]) >= 0:
        return f"rank {row['rank']}"
    return f"{row['host']} device {row['device']}"
