from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders.report_cases import HOSTILE, document, hostile_document, receive_buffers, trace
from hypothesis import given
from hypothesis import strategies as st

from moeprof.answers.document import plain
from moeprof.errors import TableError
from moeprof.reports.run.document import build, drawing_of, to_json
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def strict(text: str) -> object:
    return json.loads(text, parse_constant=refuse)


def test_document_survives_strict_json_unchanged():
    made = document()
    assert strict(to_json(made)) == made


def test_hostile_names_survive_strict_json_unchanged():
    made = hostile_document()
    assert strict(to_json(made)) == made
    names = [check["check"] for check in made["trust"]]
    assert names[-len(HOSTILE) :] == list(HOSTILE)  # laws of no registry come last


def test_keys_are_those_that_scripts_rely_on():
    made = document()
    assert list(made) == ["schema", "run", "trust", "steps", "analyses", "drawings"]
    assert made["schema"] == "moeprof.analysis/1"
    keys = ["step", "start_ns", "duration_ns", "used", "reason", "interval_ns"]
    assert list(made["steps"][0]) == keys
    finding = made["analyses"]["breakdown"]
    assert list(finding) == [
        *("question", "headline", "columns", "rows", "notes", "status", "basis")
    ]
    assert list(finding["columns"][0]) == ["name", "unit", "meaning"]
    assert list(finding["headline"][0]) == ["metric", "value", "unit"]


def test_a_used_step_has_no_reason_and_a_dropped_one_says_why():
    dropped, used, _ = document()["steps"]
    assert (dropped["used"], dropped["reason"]) == (False, "compiles")
    assert (used["used"], used["reason"]) == (True, None)


def test_a_run_without_steps_and_findings_is_a_document():
    made = build(trace(steps=(), trust=()), {})
    assert made["steps"] == []
    assert {law["verdict"] for law in made["trust"]} <= {"ok", "unchecked"}  # of the answer alone
    assert (made["analyses"], made["drawings"]) == ({}, {})


def test_int64_stays_exact():
    largest = 2**63 - 1
    made = build(trace(), {"receive_buffers": receive_buffers(("op", largest, 0.0))})
    (row,) = json.loads(to_json(made))["analyses"]["receive_buffers"]["rows"]
    assert row["worst_bytes"] == largest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, pd.NA, pd.NaT, None])
def test_what_is_no_number_becomes_null(value):
    assert plain(value) is None


def test_numpy_scalars_become_plain_values():
    assert plain(np.bool_(True)) is True
    assert type(plain(np.int64(7))) is int
    assert type(plain(np.float32(0.5))) is float


def test_half_a_surrogate_pair_becomes_a_question_mark():
    assert plain("a\ud800b") == "a?b"


def test_a_list_in_a_table_is_refused_by_name():
    with pytest.raises(TableError, match=r"found list \[1\]"):
        plain([1])


@given(st.floats() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.booleans())
def test_any_cell_is_strict_json(value):
    assert strict(json.dumps(plain(value), allow_nan=False)) == plain(value)


def test_an_infinite_headline_is_null():
    schema = Schema("empty", (Column("op", "text", "", "name"),))
    finding = Analysis(
        "x", "why?", (Metric("rate", float("inf"), "bytes/s"),), schema, schema.frame()
    )
    made = build(trace(), {"x": finding})
    assert made["analyses"]["x"]["headline"] == [
        {"metric": "rate", "value": None, "unit": "bytes/s"}
    ]


def test_columns_outside_the_schema_are_left_out():
    finding = receive_buffers(("op", 1, 1.0))
    wider = replace(finding, table=finding.table.assign(secret=[object()]))
    made = build(trace(), {"receive_buffers": wider})
    assert list(made["analyses"]["receive_buffers"]["rows"][0]) == finding.schema.names


def test_what_capture_wrote_down_is_in_the_document(tmp_path: Path):
    meta = {
        "schema": "moeprof.run/1",
        "command": "python train.py --steps 9",
        "exit_code": 3,
        "status": "partial",
        "window": "steps 4 to 6",
        "mesh": {"data": 1, "expert": 8},
        "duration_s": 12.5,
        "processes": [
            {"problems": ["late"], "devices": [{"id": 0, "kind": "NVIDIA H200"}, {"id": 1}]},
            {"problems": ["late", "lost"], "devices": [{"id": 2, "kind": "NVIDIA H200"}]},
        ],
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert build(trace(run_folder=str(tmp_path)), {})["run"]["record"] == {
        "command": "python train.py --steps 9",
        "exit_code": 3,
        "window": "steps 4 to 6",
        "status": "partial",
        "problems": ["late", "lost"],
        "kinds": ["NVIDIA H200"],
        "mesh": {"data": 1, "expert": 8},
        "duration_s": 12.5,
        "processes": [
            {"process": 0, "host": "", "exit_code": None, "problems": ["late"]},
            {"process": 1, "host": "", "exit_code": None, "problems": ["late", "lost"]},
        ],
    }


@pytest.mark.parametrize("text", ['{"schema": "other/1"}', "[]"])
def test_another_tools_meta_json_is_left_alone(tmp_path: Path, text: str):
    (tmp_path / "meta.json").write_text(text)
    assert "record" not in build(trace(run_folder=str(tmp_path)), {})["run"]


def test_a_drawing_is_column_by_column_and_repeated_texts_are_codes():
    schema = Schema(
        "drawn",
        (
            Column("name", "text", "", "what is drawn"),
            Column("start_ns", "int64", "ns", "where"),
            Column("share", "float64", "share", "how much"),
        ),
    )
    table = schema.frame(
        [
            {"name": "b", "start_ns": 2**62 + 1, "share": 0.5},
            {"name": "a", "start_ns": 0, "share": float("nan")},
            {"name": "b", "start_ns": 7, "share": 1.0},
        ]
    )
    made = drawing_of(Analysis("drawn", "What?", (Metric("most", 3, "count"),), schema, table))
    assert made["data"] == {
        "name": {"names": ["b", "a"], "codes": [0, 1, 0]},
        "start_ns": [2**62 + 1, 0, 7],
        "share": [0.5, None, 1.0],
    }
    assert made["headline"] == [{"metric": "most", "value": 3, "unit": "count"}]
    assert [column["unit"] for column in made["columns"]] == ["", "ns", "share"]
