"""Question: which figure shows the scopes and the source lines that a step's time goes to?

Every function is pure: document in, plotly figure out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeprof.answers import story
from moeprof.answers.bars import Figure, Json, plotly_text
from moeprof.answers.colours import MIXED, colour, ink_on
from moeprof.answers.document import Document, drawn_column
from moeprof.answers.values import number
from moeprof.units import format_count, format_ns, format_percent

_HEIGHT_PX, _ROW_PX, _MOST_PX = 120, 24, 760
_LINE_WIDTH = 90
_MOST_LINES = 14
_LABEL_WIDTH = 40
_CHARACTERS = 150
"""What a figure of usual width holds in a line."""
_HOVER = (
    "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]}"
    "<extra></extra>"
)

BY_SCOPE = (
    "By scope: A bar is as long as the device time of all that is under it: on top the program, "
    "then the scopes of the model, at last single operations. It has the colour of the component "
    "that is most of it, and is grey where none is. Click a bar to give it the whole width, and "
    "the path on top to go back; by keyboard the arrows walk, Enter and Escape do the same."
)
BY_SOURCE = (
    "By source line: The same time by the calls that led to each operation, the outermost on top. "
    "Lines of JAX and other libraries are left out."
)


TRUNK = " › "
"""Stands between the calls of a node that holds several."""


def by_scope(document: Document) -> Figure | None:
    """Programs, their scopes and operations."""
    return _tree(document, "scope")


def by_source(document: Document) -> Figure | None:
    """Calls from the script to the lines that made each operation."""
    return _tree(document, "source")


def _tree(document: Document, tree: str) -> Figure | None:
    """Nodes of one tree as boxes, the root on top."""
    drawing = document["drawings"].get("flame")
    if drawing is None:
        return None
    columns = {name: drawn_column(drawing, name) for name in drawing["data"]}
    mine = [row for row, kind in enumerate(columns["tree"]) if kind == tree]
    if not mine:
        return None
    nodes = [{name: values[row] for name, values in columns.items()} for row in mine]
    paths = _paths(nodes)
    depth = max(len(path) for path in paths)
    trace: dict[str, Json] = {
        "type": "icicle",
        "ids": [str(node["node"]) for node in nodes],
        "parents": ["" if node["parent"] == -1 else str(node["parent"]) for node in nodes],
        "labels": [_label(node) for node in nodes],
        # Each node's own part: what plotly.js sums itself cannot differ in the last digit.
        "values": [node["own_ns"] for node in nodes],
        "branchvalues": "remainder",
        "customdata": [
            _hover(node, path, story.basis(document))
            for node, path in zip(nodes, paths, strict=True)
        ],
        "hovertemplate": _HOVER,
        "textposition": "middle left",
        "textfont": {"color": [ink_on(_colour(node)) for node in nodes]},
        "tiling": {"orientation": "v", "pad": 1},
        "pathbar": {"thickness": 26, "textfont": {"size": 12}},
        "marker": {
            "colors": [_colour(node) for node in nodes],
            "line": {"width": 0},
        },
        "leaf": {"opacity": 1},
        "root": {"color": MIXED},
        "sort": True,
    }
    layout: dict[str, Json] = {
        "height": min(_HEIGHT_PX + _ROW_PX * depth, _MOST_PX),
        "margin": {"l": 0, "r": 0, "t": 30, "b": 0},
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
    }
    return {"data": [trace], "layout": layout}


def _paths(nodes: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """Names from the root to each node; parents come first."""
    known: dict[object, list[str]] = {-1: []}
    for node in nodes:
        known[node["node"]] = [*known[node["parent"]], str(node["name"])]
    return [known[node["node"]] for node in nodes]


def _colour(node: Mapping[str, object]) -> str:
    """That of the component which most of a node's time is; grey where none is."""
    return colour(str(node["component"])) if number(node["component_share"]) > 0.5 else MIXED


def _label(node: Mapping[str, object]) -> str:
    """The name; of a call in a narrow box without the file, which the hover text has."""
    name = str(node["name"])
    function, is_call, place = name.partition("  ")
    room = int(_CHARACTERS * number(node["share"]))
    if is_call and TRUNK not in name and len(name) > room:
        name = f"{function} :{place.rpartition(':')[2]}"
    return plotly_text(name, max(room, _LABEL_WIDTH))


def _hover(node: Mapping[str, object], path: Sequence[str], basis: str) -> list[Json]:
    """Name, figures, what it is, and where it lies, each as text without markup."""
    whole_ns, own_ns = number(node["per_step_ns"]), number(node["own_ns"])
    share, calls = format_percent(number(node["share"])), format_count(number(node["calls"]))
    own = f", {format_ns(own_ns)} of it in no part below" if 0 < own_ns < whole_ns else ""
    plural = "" if calls == "1" else "s"
    return [
        plotly_text(path[-1], _LINE_WIDTH),
        plotly_text(
            f"{format_ns(whole_ns)} {basis}, {share} of op time, {calls} call{plural}{own}",
            2 * _LINE_WIDTH,
        ),
        plotly_text(_part(node), 2 * _LINE_WIDTH),
        "<br>".join(plotly_text(name, _LINE_WIDTH) for name in _cut(path[1:-1])),
    ]


def _part(node: Mapping[str, object]) -> str:
    """Component and phase, with their shares where there are others."""
    component, phase = story.label(str(node["component"])), str(node["phase"])
    if (share := number(node["component_share"])) < 1:
        component = f"{format_percent(share)} of it {component}"
    if (share := number(node["phase_share"])) < 1:
        phase = f"{format_percent(share)} of that {phase}"
    return component if phase == "other" else f"{component}, {phase}"


def _cut(path: Sequence[str]) -> list[str]:
    """The outermost and innermost names of a long path."""
    if len(path) <= _MOST_LINES:
        return list(path)
    return [*path[:2], f"… {len(path) - _MOST_LINES + 1} more", *path[3 - _MOST_LINES :]]
