"""Question: which single operations cost most, and which line of the program are they?

Returns: one row per HLO instruction that ran, the most expensive first.
"""

from __future__ import annotations

import pandas as pd

from moeprof.analyzers.attribution import op_sums
from moeprof.analyzers.figures import flame
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.analyzers.window import PER_STEP, window
from moeprof.answers.document import Document, rows
from moeprof.answers.names import shortened
from moeprof.answers.story import (
    NAME_WIDTH,
    label,
)
from moeprof.answers.values import written
from moeprof.tables.analysis import Analysis, Metric, Status
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

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
    keys = ["module", "op", "component", "phase", "evidence", "source", "op_kind", "layer_kind"]
    groups = work.groupby([*keys, "is_known"], sort=False, observed=True)
    sums = groups.agg(
        sum=("self_ns", "sum"), size=("pieces", "sum"), confidence=("named_with", "min")
    ).reset_index()
    sums = sums.astype({name: "str" for name in keys if name != "module"})
    total_ns = int(sums["sum"].sum())
    largest = sums.sort_values(["sum", "module", "op"], ascending=[False, True, True])
    table = largest.head(MOST_ROWS).merge(_kernels(work), how="left")
    told = trace.hlo_ops[["module", "op", "opcode", "shape", "op_name"]].assign(is_known=True)
    table = table.merge(told, how="left")  # kernels have the names of ops, which may be others
    table = table.fillna({"opcode": "", "shape": "", "op_name": ""})
    table["per_step_ns"] = table["sum"] / view.shares
    table["share"] = table["sum"] / total_ns if total_ns else 0.0
    table["calls"] = table["size"] / view.shares
    shown = SCHEMA.frame({name: table[name] for name in SCHEMA.names})
    headline = (
        Metric("operations", len(sums), "count"),
        Metric("shown_share", float(shown["share"].sum()) if total_ns else None, "share"),
        Metric("basis", view.basis, ""),
    )
    status: Status = "none" if shown.empty else "ok"
    return Analysis("ops", ASKS, headline, view.stated(SCHEMA), shown, view.notes, status=status)


def _kernels(work: pd.DataFrame) -> pd.DataFrame:
    """Rows (module, op, is_known, kernel): the costliest of each op, and how many others it has."""
    place = ["module", "op", "is_known"]
    names = work[[*place, "name", "self_ns"]].astype({"op": "str"})
    costs = names.groupby([*place, "name"], observed=True)["self_ns"].sum().reset_index()
    costs = costs.astype({"name": "str"}).sort_values(["self_ns", "name"], ascending=[False, True])
    by_op = costs.groupby(place)["name"].agg(["first", "size"]).reset_index()
    others = by_op["size"] - 1
    more = others.map(lambda count: f" (+{count} more)" if count else "").astype("str")
    return by_op[place].assign(kernel=by_op["first"] + more)


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
        Picture(flame.BY_SCOPE, flame.by_scope),
        Picture(flame.BY_SOURCE, flame.by_source),
    ),
    holds_all_work=True,
    on_first_screen=("basis",),
    first=("op", "component", "per_step_ns", "share", "source", "evidence", "confidence"),
)
