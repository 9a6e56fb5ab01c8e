"""Question: what does moeprof know about a run, as one strict JSON document?

`moeprof analyze --json` prints this document, the text and the HTML page are drawn from it alone.
Its schema only grows: keys are added, never renamed or removed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.account import interval_by_step
from moeprof.analyzers.laws import laws_of, laws_over
from moeprof.analyzers.registry import is_drawing
from moeprof.errors import TableError
from moeprof.reports.left_out import left_out, said_of
from moeprof.reports.names import encodable
from moeprof.reports.out_of_memory import OutOfMemory, read_out_of_memory
from moeprof.reports.record import RunRecord, read_record
from moeprof.tables.analysis import Analysis, Metric, Withheld
from moeprof.tables.law import Scope
from moeprof.tables.name_rule import NameRules
from moeprof.tables.schema import Column
from moeprof.tables.trace import Trace, TraceMeta

SCHEMA = "moeprof.analysis/1"

Value = bool | int | float | str | None


class MetricInfo(TypedDict):
    """One headline figure; `value` is None where it cannot be known.

    `withheld` names the law because of which it is not shown.
    """

    metric: str
    value: Value
    unit: str
    withheld: NotRequired[str]


class ColumnInfo(TypedDict):
    """What a column of `rows` holds. `heading` is there where the name does not say it.

    `withheld` names the law because of which no row has a value.
    """

    name: str
    unit: str
    meaning: str
    heading: NotRequired[str]
    withheld: NotRequired[str]


class Finding(TypedDict):
    """The answer to one question."""

    question: str
    headline: list[MetricInfo]
    columns: list[ColumnInfo]
    rows: list[dict[str, Value]]
    notes: list[str]


class Labels(TypedDict):
    """A column of texts that repeat: row n is ``names[codes[n]]``."""

    names: list[str]
    codes: list[int]


class Drawing(TypedDict):
    """The answer that is a picture, column by column: all columns are of one length."""

    question: str
    headline: list[MetricInfo]
    columns: list[ColumnInfo]
    data: dict[str, list[Value] | Labels]
    notes: list[str]


class NamesInfo(TypedDict):
    """The user's rules for parts of the step: each has a component, and the conditions given."""

    file: str
    rules: list[dict[str, str]]


class RunInfo(TypedDict):
    """Where the figures come from. `record` is there where `moeprof capture` made the run.

    `out_of_memory` is there where its folder holds an out-of-memory message; `devices_left_out`
    counts devices that ran programs and have no record, or too little of one. `names` is there
    where the user gave rules for parts of the step.
    """

    path: str
    platform: str
    hosts: list[str]
    devices: int
    jax_version: str
    events: int
    notes: list[str]
    record: NotRequired[RunRecord]
    out_of_memory: NotRequired[list[OutOfMemory]]
    devices_left_out: NotRequired[int]
    names: NotRequired[NamesInfo]


class ScopeInfo(TypedDict):
    """Withheld figures of one question; None stands for any host, device, step, op."""

    question: str
    figures: list[str]
    host: str | None
    device: int | None
    step: int | None
    op: str | None


class TrustInfo(TypedDict):
    """One law: `verdict` is ok, warn, fail, or unchecked where its data is not there.

    `expected` and `found` are what it compares, in `unit`; None where it compares no figures.
    `withholds` names the questions none of whose figures are shown because of it, `scopes` the
    parts of others: figures (all where empty) of the rows that match what is given.
    """

    check: str
    verdict: str
    detail: str
    expected: Value
    found: Value
    unit: str
    withholds: list[str]
    scopes: list[ScopeInfo]


class StepInfo(TypedDict):
    """One step; `reason` says why it is not used, None where it is.

    `interval_ns` is from its start to that of the next used step, None where none follows.
    """

    step: int
    start_ns: int
    duration_ns: int
    used: bool
    reason: str | None
    interval_ns: NotRequired[float | None]


class Document(TypedDict):
    """The whole of `moeprof.analysis/1`."""

    schema: str
    run: RunInfo
    trust: list[TrustInfo]
    steps: list[StepInfo]
    analyses: dict[str, Finding]
    drawings: dict[str, Drawing]


def build(trace: Trace, analyses: Mapping[str, Analysis]) -> Document:
    """Put a trace's record and its findings into one document of plain values.

    Values are bool, int, float, str or None: NaN, infinities and missing values become None,
    int64 stays exact. What capture wrote in the run folder's ``meta.json`` is included.

    Raises:
        TableError: a table holds something that JSON has no plain value for.
    """
    return {
        "schema": SCHEMA,
        "run": _run(trace.meta),
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


def to_json(document: Document | list[Document]) -> str:
    """Strict JSON, ASCII only; refuses NaN and infinities."""
    return json.dumps(document, allow_nan=False)


def plain(value: object) -> Value:
    """One cell of a table as a JSON value.

    Raises:
        TableError: the value is none of bool, int, float, str or missing.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    raise TableError(
        f"a report holds bool, int, float and text; found {type(value).__name__} {value!r}. "
        "Give the column one of these kinds in its schema"
    )


def _run(meta: TraceMeta) -> RunInfo:
    run: RunInfo = {
        "path": encodable(meta.path),
        "platform": meta.platform,
        "hosts": [encodable(host) for host in meta.hosts],
        "devices": meta.devices,
        "jax_version": meta.jax_version,
        "events": meta.events,
        "notes": [encodable(note) for note in meta.notes],
    }
    if meta.devices_left_out:
        run["devices_left_out"] = meta.devices_left_out
    if meta.names.rules:
        run["names"] = _names(meta.names)
    record = read_record(meta.run_folder)
    if record is not None:
        run["record"] = record
    if found := read_out_of_memory(meta.run_folder):
        run["out_of_memory"] = found
    return run


def _names(names: NameRules) -> NamesInfo:
    return {
        "file": encodable(names.file),
        "rules": [
            {"component": rule.component}
            | {name: encodable(text) for name, text in rule.conditions.items()}
            for rule in names.rules
        ],
    }


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
    steps = trace.steps
    failed = next((law.check for law in laws_of(trace) if "step_time" in law.withholds), None)
    if failed is not None:
        why = f"withheld: check '{failed}' failed"
        steps = steps.assign(used=False, reason=steps["reason"].where(steps["reason"] != "", why))
    intervals = interval_by_step(trace).reindex(steps["step"].where(steps["used"], -1))
    columns = (steps[name].tolist() for name in ("step", "start_ns", "duration_ns", "used"))
    return [
        {
            "step": step,
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "used": used,
            "reason": encodable(reason) or None,
            "interval_ns": None if math.isnan(interval_ns) else interval_ns,
        }
        for step, start_ns, duration_ns, used, reason, interval_ns in zip(
            *columns, steps["reason"].tolist(), intervals.tolist(), strict=True
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
    return {
        "question": analysis.question,
        "headline": _headline(analysis),
        "columns": [_column(column, hidden) for column in analysis.schema.columns],
        "rows": [
            _row({str(name): plain(value) for name, value in row.items()}, analysis.withheld)
            for row in analysis.table[analysis.schema.names].to_dict("records")
        ]
        + missing,
        "notes": [encodable(note) for note in (*analysis.notes, *map(said_of, missing))],
    }


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
        "data": {column.name: _data(analysis.table[column.name]) for column in columns},
        "notes": [encodable(note) for note in analysis.notes],
    }


def drawn_column(drawing: Drawing, name: str) -> list[Value]:
    """The values of a column of a drawing, row by row."""
    data = drawing["data"][name]
    if isinstance(data, list):
        return data
    return [data["names"][code] for code in data["codes"]]


def drawn_rows(drawing: Drawing) -> list[dict[str, Value]]:
    """A drawing row by row, as a finding has its rows."""
    names = list(drawing["data"])
    rows = zip(*(drawn_column(drawing, name) for name in names), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def figures_of(answer: Finding | Drawing) -> dict[str, Value]:
    """The headline figures of an answer by metric."""
    return {metric["metric"]: metric["value"] for metric in answer["headline"]}


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


def _data(column: pd.Series[Any]) -> list[Value] | Labels:
    """Texts as codes into their names: what is drawn says the same few thousands of times."""
    if pd.api.types.is_numeric_dtype(column.dtype):  # bool too
        return [plain(value) for value in column.tolist()]
    codes, names = pd.factorize(column)
    return {"names": [encodable(name) for name in names], "codes": codes.tolist()}
