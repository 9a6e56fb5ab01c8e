"""Question: which figure shows a finding?

Every function is pure: document in, plotly figure out, as the plain dict that plotly.js draws.
Colours of text, grid and background are the page's; names are escaped, as plotly.js reads markup.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

from moeprof.reports import story
from moeprof.reports.components import HATCHED, PHASES, colour, in_order
from moeprof.reports.document import Document, Value
from moeprof.reports.names import printable, shortened
from moeprof.units import format_bytes, format_ns, format_percent

Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None
Figure = dict[str, Json]

_NAME_WIDTH = 34
_ROW_PX = 30
_FRAME_PX = 90
_MOST_BARS = 40
_LEGEND: dict[str, Json] = {
    "orientation": "h",
    "x": 0,
    "y": 1,
    "xanchor": "left",
    "yanchor": "bottom",
    "traceorder": "normal",
}


def breakdown(document: Document) -> Figure | None:
    """One bar per component, its phases one after the other; milliseconds per step."""
    totals = story.phase_totals(document)
    if not totals:
        return None
    components = [part.component for part in story.parts(document)]
    traces = [
        _bar(
            name=phase,
            lengths=[totals.get((c, phase), 0.0) / 1e6 for c in components],
            hover=[format_ns(totals.get((c, phase), 0.0)) for c in components],
            marker={
                "color": [colour(c) for c in components],
                "pattern": {"shape": PHASES.get(phase, "."), "solidity": 0.35},
            },
        )
        for phase in phases(totals)
    ]
    return _bars(traces, [story.label(c) for c in components], "ms per step")


def comparison(documents: Sequence[Document]) -> Figure | None:
    """One bar per run: its components in the order of the palette; milliseconds per step."""
    runs = [{p.component: p for p in story.parts(document)} for document in documents]
    components = in_order(name for run in runs for name in run)
    if not components:
        return None
    traces = [
        _bar(
            name=story.label(component),
            lengths=[_part_ns(run, component) / 1e6 for run in runs],
            hover=[_part_words(run, component) for run in runs],
            marker={
                "color": colour(component),
                "pattern": {"shape": "/" if component in HATCHED else "", "solidity": 0.2},
            },
        )
        for component in components
    ]
    return _bars(traces, story.run_labels(documents), "ms per step")


def receive_buffers(document: Document) -> Figure | None:
    """Per buffer: the bytes it has for the worst case, and the bytes that tokens used."""
    rows = story.rows(document, "receive_buffers")[:_MOST_BARS]
    if not rows:
        return None
    worst = [_number(row, "worst_bytes") for row in rows]
    used = [_number(row, "used_bytes") for row in rows]
    traces = [
        _bar(
            name="worst case",
            lengths=[(size or 0) / 2**20 for size in worst],
            hover=[_bytes(size) for size in worst],
            marker={"color": "#9db4ea"},
        )
    ]
    if any(size is not None for size in used):
        traces.append(
            _bar(
                name="used",
                lengths=[(size or 0) / 2**20 for size in used],
                hover=[_bytes(size) for size in used],
                marker={"color": "#dd6a1f", "pattern": {"shape": "/", "solidity": 0.2}},
            )
        )
    return _bars(traces, [str(row["op"]) for row in rows], "MiB", barmode="group")


def step_time(document: Document) -> Figure | None:
    """One column per step in order of time; steps that are not used are grey, with the reason."""
    steps = document["steps"]
    if not steps:
        return None
    traces: list[Json] = [
        {
            "type": "bar",
            "name": name,
            "x": [str(step["step"]) for step in steps if step["used"] is used],
            "y": [step["duration_ns"] / 1e6 for step in steps if step["used"] is used],
            "customdata": [
                [format_ns(s["duration_ns"]), _text(s["reason"] or "figures are taken from it")]
                for s in steps
                if s["used"] is used
            ],
            "hovertemplate": "step %{x}: %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            "marker": dict(marker),
        }
        for used, name, marker in (
            (True, "used", {"color": "#0a6fb5"}),
            (False, "not used", {"color": "#b4b8bd", "pattern": {"shape": "/", "solidity": 0.3}}),
        )
        if any(step["used"] is used for step in steps)
    ]
    layout: dict[str, Json] = {
        "height": 280,
        "barmode": "stack",
        "showlegend": len(traces) > 1,
        "legend": _LEGEND,
        "margin": {"l": 60, "r": 16, "t": 34, "b": 44},
        "xaxis": {
            "title": {"text": "step"},
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [str(step["step"]) for step in steps],
        },
        "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
    }
    return {"data": traces, "layout": layout}


FIGURES: dict[str, Callable[[Document], Figure | None]] = {
    "step_time": step_time,
    "breakdown": breakdown,
    "receive_buffers": receive_buffers,
}
"""The figure of each analysis that has one, by the analysis' name."""


def phases(totals: Mapping[tuple[str, str], float]) -> list[str]:
    """The phases of a breakdown in the order in which a step runs them, unknown ones last."""
    places = {name: place for place, name in enumerate(PHASES)}
    found = {phase for _component, phase in totals}
    return sorted(found, key=lambda name: (places.get(name, len(places)), name))


def _bar(
    *, name: str, lengths: Sequence[float], hover: Sequence[str], marker: dict[str, Json]
) -> dict[str, Json]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": _text(name),
        "y": list(range(len(lengths))),
        "x": list(lengths),
        "customdata": list(hover),
        "marker": {"line": {"width": 0}, **marker},
    }


def _bars(
    traces: Sequence[dict[str, Json]], labels: Sequence[str], unit: str, *, barmode: str = "stack"
) -> Figure:
    """Bars at whole numbers with labels on the axis: two names cut alike stay two bars."""
    names = [_text(label) for label in labels]
    data = [
        trace
        | {
            "text": names,
            "textposition": "none",
            "hovertemplate": "%{text}<br>%{fullData.name}: %{customdata}<extra></extra>",
        }
        for trace in traces
    ]
    rows = len(labels) * (len(traces) if barmode == "group" else 1)
    layout: dict[str, Json] = {
        "height": _FRAME_PX + _ROW_PX * rows,
        "barmode": barmode,
        "bargap": 0.25,
        "showlegend": len(traces) > 1,
        "legend": _LEGEND,
        "margin": {"l": 8, "r": 16, "t": 34, "b": 44},
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": {
            "autorange": "reversed",
            "automargin": True,
            "tickmode": "array",
            "tickvals": list(range(len(names))),
            "ticktext": names,
        },
    }
    return {"data": data, "layout": layout}


def _part_ns(run: Mapping[str, story.Part], component: str) -> float:
    return run[component].duration_ns if component in run else 0.0


def _part_words(run: Mapping[str, story.Part], component: str) -> str:
    if component not in run:
        return "none in this run"
    part = run[component]
    return f"{format_ns(part.duration_ns)}, {format_percent(part.share)}"


def _number(row: Mapping[str, Value], name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, int | float) else None


def _bytes(size: float | None) -> str:
    return "not known" if size is None else format_bytes(size)


def _text(name: str) -> str:
    """A name as plotly.js shows it unchanged: cut, invisible characters spelled, no markup."""
    return html.escape(shortened(printable(name), _NAME_WIDTH), quote=False)
