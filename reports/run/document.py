"""Question: what does moeprof know about a run, as one strict JSON document?

`moeprof analyze --json` prints this document, the text and the HTML page are drawn from it alone.
Its schema only grows: keys are added, never renamed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from moeprof.analyzers.activity.account import interval_by_step
from moeprof.analyzers.laws import laws_of, laws_over
from moeprof.analyzers.registry import is_drawing
from moeprof.analyzers.renamed import described_names
from moeprof.answers.document import (
    ColumnInfo,
    Document,
    Drawing,
    Finding,
    Labels,
    MetricInfo,
    NamesInfo,
    RunInfo,
    ScopeInfo,
    StepInfo,
    Value,
    plain,
)
from moeprof.answers.values import encodable
from moeprof.columns.coded import Coded
from moeprof.columns.grouping import grouped_columns
from moeprof.columns.table import Column as Cells
from moeprof.reports.run.record import read_out_of_memory, read_record
from moeprof.tables.analysis import Analysis, Metric, Withheld
from moeprof.tables.law import Scope
from moeprof.tables.name_rule import NameRules
from moeprof.tables.once import as_given
from moeprof.tables.schema import Column
from moeprof.tables.trace import Trace, TraceMeta

SCHEMA = "moeprof.analysis/1"


def build(trace: Trace, analyses: Mapping[str, Analysis]) -> Document:
    """Put a trace's record and its findings into one document of plain values.

    Values are bool, int, float, str or None: NaN, infinities and missing values become None,
    int64 stays exact. What capture wrote in the run folder's ``meta.json`` is included.

    Raises:
        TableError: a table holds something that JSON has no plain value for.
    """
    document = {
        "schema": SCHEMA,
        "run": _run(trace.meta, _told_of_names(trace, analyses)),
        "trust": [
            {
                "check": law.check,
                "verdict": law.verdict,
                "detail": encodable(law.detail),
                "expected": plain(law.expected),
                "found": plain(law.found),
                "unit": law.unit,
                "withholds": list(law.withholds),
                "scopes": [_scope(scope) for scope in law.scopes],
            }
            for law in laws_over(trace, analyses)
        ],
        "steps": _steps(trace),
        "analyses": {
            name: finding_of(analysis)
            for name, analysis in analyses.items()
            if not is_drawing(name)
        },
        "drawings": {
            name: drawing_of(analysis) for name, analysis in analyses.items() if is_drawing(name)
        },
    }
    return cast("Document", as_given(trace, document))


def to_json(document: Document | list[Document]) -> str:
    """Strict JSON, ASCII only; refuses NaN and infinities."""
    return json.dumps(document, allow_nan=False)


def _run(meta: TraceMeta, told: str) -> RunInfo:
    run: RunInfo = {
        "path": encodable(meta.path),
        "platform": meta.platform,
        "hosts": [encodable(host) for host in meta.hosts],
        "devices": meta.devices,
        "framework": meta.framework,
        "jax_version": meta.jax_version,
        "events": meta.events,
        "notes": [encodable(note) for note in meta.notes],
    }
    if meta.devices_left_out:
        run["devices_left_out"] = meta.devices_left_out
    if meta.names.rules:
        run["names"] = _names(meta.names, told)
    record = read_record(meta.run_folder)
    if record is not None:
        run["record"] = record
    if found := read_out_of_memory(meta.run_folder):
        run["out_of_memory"] = found
    return run


def _told_of_names(trace: Trace, analyses: Mapping[str, Analysis]) -> str:
    """What the user's rules name and changed, where the breakdown shows it."""
    found = analyses.get("breakdown")
    is_shown = found is not None and found.status != "withheld"
    return "".join(described_names(trace)) if is_shown else ""


def _names(names: NameRules, told: str) -> NamesInfo:
    found: NamesInfo = {
        "file": encodable(names.file),
        "rules": [
            {"component": rule.component}
            | {name: encodable(text) for name, text in rule.conditions.items()}
            for rule in names.rules
        ],
    }
    return found | {"told": encodable(told)} if told else found


def _scope(scope: Scope) -> ScopeInfo:
    return {
        "question": scope.question,
        "figures": list(scope.figures),
        "host": encodable(scope.host) or None,
        "device": scope.device if scope.device != -1 else None,
        "step": scope.step if scope.step != -1 else None,
        "op": encodable(scope.op) or None,
    }


def _steps(trace: Trace) -> list[StepInfo]:
    """No step is used where a failed check withholds the step time."""
    steps = trace.table("steps")
    failed = next((law.check for law in laws_of(trace) if "step_time" in law.withholds), None)
    if failed is not None:
        why = f"withheld: check '{failed}' failed"
        steps = steps.assign(used=False, reason=[text or why for text in steps["reason"]])
    intervals = interval_by_step(trace)
    return [
        {
            "step": step,
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "used": used,
            "reason": encodable(reason) or None,
            "interval_ns": intervals.get(step if used else -1),
        }
        for step, start_ns, duration_ns, used, reason in steps.rows(
            "step", "start_ns", "duration_ns", "used", "reason"
        )
    ]


def column_info(column: Column) -> ColumnInfo:
    """What a document says of a column."""
    info: ColumnInfo = {"name": column.name, "unit": column.unit, "meaning": column.meaning}
    return info | {"heading": column.heading} if column.heading else info


def finding_of(analysis: Analysis) -> Finding:
    """One analysis as plain values, as `build` puts it into the document.

    A withheld value is None, and its metric, column or row names the law under `withheld`. A device
    that is left out has one row, of nulls.
    """
    hidden = [withheld for withheld in analysis.withheld if not withheld.scope.chooses_rows]
    missing = left_out(analysis)
    found: Finding = {
        "question": analysis.question,
        "headline": _headline(analysis),
        "columns": [_column(column, hidden) for column in analysis.schema.columns],
        "rows": [
            _row({name: plain(value) for name, value in row.items()}, analysis.withheld)
            for row in analysis.cells.select(*analysis.schema.names).dicts()
        ]
        + missing,
        "notes": [encodable(note) for note in (*analysis.notes, *map(said_of, missing))],
        "status": analysis.status,
        "basis": analysis.basis,
    }
    return found | {"why": encodable(analysis.why)} if analysis.why else found


def _column(column: Column, hidden: Sequence[Withheld]) -> ColumnInfo:
    info = column_info(column)
    law = next((each.law for each in hidden if each.covers(column.name)), None)
    return info | {"withheld": law} if law else info


_KEYS = ("host", "device", "step", "op", "rank")
"""Columns that say what a row is of: they are no figures."""


def _row(row: dict[str, Value], hidden: Sequence[Withheld]) -> dict[str, Value]:
    """The row without its withheld figures, and with the law's name where it alone lacks them."""
    for each in hidden:
        if not each.is_of(row):
            continue
        figures = [n for n in row if n not in _KEYS and n != "withheld" and each.covers(n)]
        row |= dict.fromkeys(figures, None)
        if each.scope.chooses_rows and figures:
            row["withheld"] = each.law
    return row


def drawing_of(analysis: Analysis) -> Drawing:
    """One drawing as plain values, as `build` puts it into the document."""
    columns = analysis.schema.columns
    return {
        "question": analysis.question,
        "headline": _headline(analysis),
        "columns": [column_info(column) for column in columns],
        "data": {column.name: _data(analysis.cells[column.name]) for column in columns},
        "notes": [encodable(note) for note in analysis.notes],
    }


def _headline(analysis: Analysis) -> list[MetricInfo]:
    hidden = [withheld for withheld in analysis.withheld if not withheld.scope.chooses_rows]
    return [_metric(metric, hidden) for metric in analysis.headline]


def _metric(metric: Metric, hidden: Sequence[Withheld]) -> MetricInfo:
    info: MetricInfo = {
        "metric": encodable(metric.metric),
        "value": plain(metric.value),
        "unit": metric.unit,
    }
    law = next((each.law for each in hidden if each.covers(metric.metric)), None)
    return info | {"value": None, "withheld": law} if law else info


def _data(column: Cells) -> list[Value] | Labels:
    """Texts as codes into their names: what is drawn says the same few thousands of times."""
    if not isinstance(column, Coded):
        if column.dtype.kind in "iub" or (column.dtype.kind == "f" and np.isfinite(column).all()):
            found: list[Value] = column.tolist()
            return found
        if column.dtype.kind == "f":
            return [plain(value) for value in column.tolist()]
        column = Coded.of(column)
    groups = grouped_columns([column], is_sorted=False)
    names = column[groups.first].tolist()
    return {"names": [encodable(name) for name in names], "codes": groups.of.tolist()}


def left_out(analysis: Analysis) -> list[dict[str, Value]]:
    """A row of nulls for each device that a law withholds and the table does not have.

    It has the columns of the table, and under ``withheld`` the name of the law.
    """
    names = analysis.schema.names
    if not {"host", "device"} <= set(names):
        return []
    known = set(analysis.cells.rows("host", "device"))
    law_of: dict[tuple[str, int], str] = {}
    for each in analysis.withheld:
        place = (each.scope.host, each.scope.device)
        if each.scope.host and each.scope.device != -1 and place not in known:
            law_of.setdefault(place, each.law)
    nulls: dict[str, Value] = dict.fromkeys(names, None)
    return [
        nulls | {"host": encodable(host), "device": device, "withheld": law}
        for (host, device), law in sorted(law_of.items())
    ]


def said_of(row: Mapping[str, object]) -> str:
    """A note on such a row."""
    return (
        f"device {row['device']} of {row['host']} is left out: its row is withheld by the check "
        f"'{row['withheld']}'"
    )
