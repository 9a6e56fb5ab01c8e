"""Question: what is an answer, as plain values?

The types are those of `moeprof.analysis/1`, the one document of a run; what is read off it, reads
from it alone.
"""

from __future__ import annotations

import math
import sys
from typing import NotRequired, TypedDict

import numpy as np

from moeprof.answers.values import encodable
from moeprof.errors import TableError
from moeprof.tables.analysis import Basis, Status

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
    """The answer to one question.

    `status` is ok, none, not_known or withheld; `why` says why there is none of the kind, and is
    the first of the notes, too. `basis` is what times are per device of: step, or capture.
    `rows_left_out` counts rows that were cut on request.
    """

    question: str
    headline: list[MetricInfo]
    columns: list[ColumnInfo]
    rows: list[dict[str, Value]]
    notes: list[str]
    status: NotRequired[Status]
    basis: NotRequired[Basis]
    why: NotRequired[str]
    rows_left_out: NotRequired[int]


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
    """The user's rules for parts of the step: each has a component, and the conditions given.

    `told` says what they name and changed, where that is known.
    """

    file: str
    rules: list[dict[str, str]]
    told: NotRequired[str]


class ProcessEnd(TypedDict):
    """One process of a run: its place, its host, how it ended and what went wrong."""

    process: int
    host: str
    exit_code: int | None
    problems: list[str]


class RunRecord(TypedDict):
    """The part of ``meta.json`` that a report shows; None where it was not written.

    `status` is complete, partial or empty: whether every window holds what was asked for.
    `kinds` are the devices' names, as the runtime gives them, each once; `mesh` is the size of
    each axis. `duration_s` is how long the command ran.
    """

    command: str | None
    exit_code: int | None
    window: str | None
    status: str | None
    problems: list[str]
    kinds: NotRequired[list[str]]
    mesh: NotRequired[dict[str, int]]
    duration_s: NotRequired[float | None]
    processes: NotRequired[list[ProcessEnd]]


class OutOfMemory(TypedDict):
    """One failure: sizes in bytes, None where the message does not tell them.

    `sentence` says why there was no room, `memory` which memory it was, `state` how its pool was.
    """

    sentence: str
    verdict: str
    memory: str
    state: str
    devices: list[str]
    request_bytes: int | None
    limit_bytes: int | None
    in_use_bytes: int | None
    free_bytes: int | None
    excess_bytes: int | None


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
    framework: NotRequired[str]


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


NO_FINDING: Finding = {"question": "", "headline": [], "columns": [], "rows": [], "notes": []}
"""What stands for an answer that is not there."""

_UNRECORDED = "profile"


def plain(value: object) -> Value:
    """One cell of a table as a JSON value.

    Raises:
        TableError: the value is none of bool, int, float, str or missing.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or _is_missing(value):
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


def _is_missing(value: object) -> bool:
    """Whether it is what pandas has for a missing value: where there is one, pandas is imported."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NA or value is pandas.NaT)


def is_unrecorded(document: Document) -> bool:
    """Whether the run ended before its profile was written: there is nothing but this to say."""
    return any(
        law["check"] == _UNRECORDED and law["verdict"] == "fail" for law in document["trust"]
    )


def rows(document: Document, name: str) -> list[dict[str, Value]]:
    """The rows of one analysis; empty where it was not run."""
    finding = document["analyses"].get(name)
    return finding["rows"] if finding else []


def headline(document: Document, name: str) -> dict[str, Value]:
    """The headline figures of one analysis by metric; empty where it was not run."""
    finding = document["analyses"].get(name, NO_FINDING)
    return figures_of(finding)


def with_rows(document: Document, most: int) -> Document:
    """`document` with at most ``most`` rows per answer; `rows_left_out` counts the others.

    To be shown as it is: nothing may be computed from rows that are cut.
    """
    return {
        **document,
        "analyses": {
            name: {
                **finding,
                "rows": finding["rows"][:most],
                "rows_left_out": max(len(finding["rows"]) - most, 0),
            }
            for name, finding in document["analyses"].items()
        },
        "drawings": {
            name: {
                **drawing,
                "data": {key: _first(data, most) for key, data in drawing["data"].items()},
            }
            for name, drawing in document["drawings"].items()
        },
    }


def _first(data: list[Value] | Labels, most: int) -> list[Value] | Labels:
    if isinstance(data, list):
        return data[:most]
    codes = data["codes"][:most]
    kept = {code: place for place, code in enumerate(dict.fromkeys(codes))}
    return {"names": [data["names"][code] for code in kept], "codes": [kept[c] for c in codes]}


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
