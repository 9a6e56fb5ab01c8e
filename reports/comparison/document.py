"""Question: what does moeprof know about the difference of two runs, as one strict JSON document?

`moeprof compare --json` prints this document, the text is drawn from it alone. Its schema only
grows: keys are added, never renamed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypedDict

import pandas as pd

from moeprof.analyzers.comparison.changes import CHANGES
from moeprof.analyzers.comparison.compare import MEMORY_CHANGES, Comparison
from moeprof.analyzers.comparison.gates import Outcome
from moeprof.analyzers.comparison.notes import SETTING_CHANGES
from moeprof.analyzers.comparison.step_change import STEP_CHANGES, TOKEN_CHANGES
from moeprof.analyzers.heap.at_peak import BUFFER_CHANGES
from moeprof.answers.document import (
    ColumnInfo,
    Document,
    RunInfo,
    StepInfo,
    TrustInfo,
    Value,
    plain,
)
from moeprof.answers.values import encodable
from moeprof.reports.run.document import column_info
from moeprof.tables.schema import Schema

SCHEMA = "moeprof.comparison/1"

Row = dict[str, Value]


class SideInfo(TypedDict):
    """One of the two runs, as in `moeprof.analysis/1`."""

    run: RunInfo
    trust: list[TrustInfo]
    steps: list[StepInfo]


class Changes(TypedDict):
    """A table; it has no row where its figures are not known, and a note says why."""

    columns: list[ColumnInfo]
    rows: list[Row]


class NoiseInfo(TypedDict):
    """How the noise was taken."""

    method: str
    base_steps: int
    new_steps: int


class GateInfo(TypedDict):
    """One `--fail-on`: passed, failed or not known; change and allowed are in `unit`."""

    expression: str
    name: str
    verdict: str
    change: float | None
    allowed: float | None
    unit: str
    remark: str


class ComparisonDocument(TypedDict):
    """The whole of `moeprof.comparison/1`."""

    schema: str
    base: SideInfo
    new: SideInfo
    step: Changes
    token: Changes
    rows: Changes
    memory: Changes
    buffers: Changes
    noise: NoiseInfo
    gates: list[GateInfo]
    notes: list[str]
    settings: Changes
    arguments: list[str]


def build_comparison(
    base: Document,
    new: Document,
    comparison: Comparison,
    outcomes: Sequence[Outcome] = (),
    *,
    settings: pd.DataFrame | None = None,
    arguments: Sequence[str] = (),
) -> ComparisonDocument:
    """Put two runs' records and what changed between them into one document of plain values.

    ``settings`` has `SETTING_CHANGES`; ``arguments`` are those of the command, without what only
    says how the answer is shown.
    """
    return {
        "schema": SCHEMA,
        "base": _side(base),
        "new": _side(new),
        "step": _changes(STEP_CHANGES, comparison.step),
        "token": _changes(TOKEN_CHANGES, comparison.token),
        "rows": _changes(CHANGES, comparison.rows),
        "memory": _changes(MEMORY_CHANGES, comparison.memory),
        "buffers": _changes(BUFFER_CHANGES, comparison.buffers),
        "noise": {
            "method": "95 % half width of the change by Welch's t-test over used steps, each the "
            "mean of its devices",
            "base_steps": _used(base),
            "new_steps": _used(new),
        },
        "gates": [_gate(outcome) for outcome in outcomes],
        "notes": [encodable(note) for note in comparison.notes],
        "settings": _changes(
            SETTING_CHANGES, SETTING_CHANGES.frame() if settings is None else settings
        ),
        "arguments": [encodable(word) for word in arguments],
    }


def comparison_json(document: ComparisonDocument) -> str:
    """Strict JSON, ASCII only; refuses NaN and infinities."""
    return json.dumps(document, allow_nan=False)


def _side(document: Document) -> SideInfo:
    return {"run": document["run"], "trust": document["trust"], "steps": document["steps"]}


def _used(document: Document) -> int:
    return sum(step["used"] for step in document["steps"])


def _changes(schema: Schema, table: pd.DataFrame) -> Changes:
    rows = table[schema.names].to_dict("records")
    return {
        "columns": [column_info(column) for column in schema.columns],
        "rows": [{str(name): plain(value) for name, value in row.items()} for row in rows],
    }


def _gate(outcome: Outcome) -> GateInfo:
    return {
        "expression": encodable(outcome.gate.expression),
        "name": outcome.gate.name,
        "verdict": outcome.verdict,
        "change": outcome.change,
        "allowed": outcome.allowed,
        "unit": outcome.unit,
        "remark": outcome.remark,
    }
