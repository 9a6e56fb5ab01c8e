"""Question: which single operations cost most, and which line of the program are they?

Returns: one row per HLO instruction that ran, the most expensive first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from moeprof.analyzers.attribution import op_sums
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.analyzers.window import PER_STEP, window
from moeprof.answers import story
from moeprof.answers.bars import Figure, Json, plotly_text
from moeprof.answers.colours import MIXED, colour, ink_on
from moeprof.answers.document import Document, drawn_column, rows
from moeprof.answers.story import (
    NAME_WIDTH,
    label,
)
from moeprof.answers.values import number, shortened, written
from moeprof.columns.grouping import grouped, places_in
from moeprof.columns.table import Table, texts_of
from moeprof.tables.analysis import Analysis, Metric, Status
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_count, format_ns, format_percent

SCHEMA = Schema(
    "ops",
    (
        Column("op", "text", "", "HLO instruction; a kernel's name where none is known for sure"),
        Column("module", "int64", "", "program id"),
        Column("opcode", "text", "", "HLO opcode"),
        Column("shape", "text", "", "result"),
        Column("kernel", "text", "", "its costliest kernel, and how many more it has"),
        Column("op_kind", "text", "", "kind of operation: gemm, sort, all_gather, …"),
        Column("layer_kind", "text", "", "kind of layer: moe_layer, dense_layer, head, …"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("per_step_ns", "float64", "ns", f"self time, {PER_STEP}"),
        Column("share", "float64", "share", "of all op time"),
        Column("calls", "float64", "count", f"kernels, copies or thunks run, {PER_STEP}"),
        Column("evidence", "text", "", "what the component was decided by"),
        Column("confidence", "float64", "", "how sure the component is, 0 to 1"),
        Column("source", "text", "", "file:line of the user's program"),
        Column("op_name", "text", "", "scope path that JAX recorded"),
    ),
)
ASKS = "Which operations cost most, and where do they come from?"
MOST_ROWS = 50


def ops(trace: Trace) -> Analysis:
    """The `MOST_ROWS` operations with the largest self time in the used steps."""
    view = window(trace)
    work = op_sums(trace)
    groups = grouped(work, *_KEYS, "is_known", is_sorted=False)
    sums = work.select(*_KEYS, "is_known")[groups.first].assign(
        sum=groups.sum(work["self_ns"]),
        size=groups.sum(work["pieces"]),
        confidence=groups.min(work["named_with"]),
    )
    total_ns = int(sums["sum"].sum())
    largest = sums.sorted("sum", "module", "op", falling=["sum"])[:MOST_ROWS]
    shown = SCHEMA.table(
        largest.columns
        | _named(trace, largest)
        | {
            "kernel": _kernels(work, largest),
            "per_step_ns": largest["sum"] / view.shares,
            "share": largest["sum"] / total_ns if total_ns else np.zeros(len(largest)),
            "calls": largest["size"] / view.shares,
        }
    )
    headline = (
        Metric("operations", len(sums), "count"),
        Metric("shown_share", float(shown["share"].sum()) if total_ns else None, "share"),
        Metric("basis", view.basis, ""),
    )
    status: Status = "ok" if len(shown) else "none"
    return Analysis("ops", ASKS, headline, view.stated(SCHEMA), shown, view.notes, status=status)


_KEYS = ("module", "op", "component", "phase", "evidence", "source", "op_kind", "layer_kind")


def _named(trace: Trace, largest: Table) -> dict[str, np.ndarray]:
    """What the program says of each op; kernels have the names of ops, which may be others."""
    ops = trace.table("hlo_ops")
    place = np.where(largest["is_known"], places_in(largest, ops, "module", "op"), -1)
    return {name: np.append(ops[name], "")[place] for name in ("opcode", "shape", "op_name")}


def _kernels(work: Table, largest: Table) -> np.ndarray:
    """The costliest kernel of each op, and how many others it has."""
    place = ("module", "op", "is_known")
    mine = work.select(*place, "name", "self_ns")[places_in(work, largest, *place) >= 0]
    kernels = grouped(mine, *place, "name")
    sums = mine[kernels.first].assign(self_ns=kernels.sum(mine["self_ns"]))
    sums = sums.sorted("self_ns", "name", falling=["self_ns"])
    ops = grouped(sums, *place)
    of_op = places_in(largest, sums[ops.first], *place)
    names, others = sums["name"][ops.first[of_op]].tolist(), (ops.size[of_op] - 1).tolist()
    rows = zip(names, others, strict=True)
    return texts_of(f"{name} (+{more} more)" if more else name for name, more in rows)


def sentence(document: Document) -> str:
    """The costliest operation."""
    found = rows(document, "ops")
    if not found:
        return ""
    first = found[0]
    name = shortened(written(first["op"], ""), NAME_WIDTH) or "work without a name"
    return (
        f"Costliest: {name} ({label(str(first['component']))}, {written(first['phase'], '')}), "
        f"{written(first['share'], 'share')} of op time ({written(first['per_step_ns'], 'ns')})."
    )


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


QUESTION = Question(
    title="Costliest operations",
    group=Group.TIME,
    place=4,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.COMPONENTS, Need.NESTING}),
    schema=SCHEMA,
    run=ops,
    sentence=sentence,
    figures=(
        Picture(BY_SCOPE, by_scope),
        Picture(BY_SOURCE, by_source),
    ),
    holds_all_work=True,
    on_first_screen=("basis",),
    first=("op", "component", "per_step_ns", "share", "source", "evidence", "confidence"),
)
