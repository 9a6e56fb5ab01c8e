import dataclasses
import json
import math
import os
from functools import reduce
from operator import getitem
from pathlib import Path

import pandas as pd
import pytest
from builders.frames import trace_with
from builders.hlo import computation, hlo_proto, op
from builders.trace import trace_of
from builders.xspace import thunk

from moeprof.errors import TraceError
from moeprof.tables import store
from moeprof.tables.law import Law, Need, Scope
from moeprof.tables.name_rule import NameRule, NameRules
from moeprof.tables.store import holds_tables, read_tables, write_tables
from moeprof.tables.trace import FRAMES, STEPS, HostClock, MeshAxis, TraceMeta
from moeprof.tables.trace_json import Record, StoredTable, from_json, to_json

CLOCK = HostClock("b", -5, 1.5, 30, 12)
META = TraceMeta(
    "a b/\udcff",
    "gpu",
    ("a", "b"),
    2,
    "0.10.2",
    5,
    ("note",),
    "a b",
    True,
    (CLOCK,),
    9,
    "h100_sxm",
    3,
    ("b",),
    16,
    ("process 3",),
    ("memory/p3.json",),
    NameRules("names.yml", (NameRule("router", op="gate.3"), NameRule("norm", scope="a/b"))),
    (MeshAxis("fsdp", 2), MeshAxis("expert", 4)),
    "pytorch",
)  # a file name that is not UTF-8


def ingested(folder: Path):
    program = hlo_proto(computation("main", op("add", "add", "f32[8]")))
    return trace_of(folder, program, *(thunk("add", 1000 * i + 5, 9, run_id=i) for i in range(3)))


def test_a_trace_comes_back_whole(tmp_path):
    trace = ingested(tmp_path / "run")
    write_tables(trace, tmp_path / "tables")
    back = read_tables(tmp_path / "tables")
    assert back.trust == trace.trust
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(back, name), getattr(trace, name))
    assert len(back.events) == 3


def test_every_part_of_the_meta_comes_back(tmp_path):
    for field in dataclasses.fields(META):  # what stands at its default would seem to come back
        assert getattr(META, field.name) != field.default
    write_tables(trace_with(META), tmp_path / "t")
    assert read_tables(tmp_path / "t").meta == moved(META, tmp_path / "t")


def moved(meta: TraceMeta, folder: Path) -> TraceMeta:
    """Where it came from is a note; a run folder that has no record is none."""
    notes = (*meta.notes, f"tables written from {meta.path}")
    return dataclasses.replace(meta, path=str(folder), run_folder="", notes=notes)


def test_every_part_of_a_check_comes_back(tmp_path):
    sample = {
        **{"str": "x", "Verdict": "warn", "tuple[str, ...]": ("y", "z"), "Figure": 0.75},
        "tuple[Scope, ...]": (Scope("ops", ("bytes",), "node0", 1, 3, "fusion.1", Need.ROUTING),),
        "tuple[Need, ...]": (Need.DEVICE_TIMES, Need.PROGRAMS),
    }
    check = Law(**{f.name: sample[f.type] for f in dataclasses.fields(Law)})
    write_tables(dataclasses.replace(trace_with(), trust=(check,)), tmp_path / "t")
    assert read_tables(tmp_path / "t").trust == (check,)
    stored = json.loads((tmp_path / "t" / "trace.json").read_text())["trust"][0]
    assert stored["breaks"] == ["DEVICE_TIMES", "PROGRAMS"]  # words may change, names do not


def test_a_record_of_an_earlier_release_keeps_the_questions_that_it_names(tmp_path):
    """It has names of questions in `withholds`, and no needs; drawings were named, too."""
    write_tables(trace_with(), tmp_path / "t")
    law = {"check": "tokens", "verdict": "fail", "detail": "twice"}
    scope = {"question": "launch", "figures": [], "host": "a", "device": -1, "step": -1, "op": ""}
    named = {"withholds": ["expert_load", "load_map"], "scopes": [scope]}
    broken(tmp_path / "t", trust=[law | named])
    (found,) = read_tables(tmp_path / "t").trust
    assert (found.breaks, found.withholds) == ((), ("expert_load", "load_map"))
    assert found.scopes == (Scope("launch", host="a"),)
    assert found.withholds_figures("expert_load")
    assert not found.withholds_figures("memory")


def test_what_an_earlier_release_did_not_write_has_its_default(tmp_path):
    write_tables(trace_with(META), tmp_path / "t")
    meta = json.loads((tmp_path / "t" / "trace.json").read_text())["meta"]
    del meta["clocks"]
    broken(tmp_path / "t", meta=meta)
    assert read_tables(tmp_path / "t").meta.clocks == ()


def test_what_capture_wrote_down_goes_with_the_tables(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "meta.json").write_text('{"schema": "moeprof.run/1"}')
    write_tables(trace_with(dataclasses.replace(META, run_folder=str(run))), tmp_path / "t")
    (run / "meta.json").unlink()
    folder = read_tables(tmp_path / "t").meta.run_folder
    assert folder == str(tmp_path / "t")
    assert (tmp_path / "t" / "meta.json").read_text() == '{"schema": "moeprof.run/1"}'


def test_a_figure_that_is_not_finite_is_null_in_strict_json(tmp_path):
    clock = HostClock("b", 0, math.nan, 0, 0)
    write_tables(trace_with(TraceMeta("r", "gpu", ("b",), 1, "", 5, clocks=(clock,))), tmp_path)
    text = (tmp_path / "trace.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["meta"]["clocks"][0]["drift_ppb"] is None
    assert math.isnan(read_tables(tmp_path).meta.clocks[0].drift_ppb)


def test_what_was_written_is_told_with_rows_and_bytes(tmp_path):
    tables = write_tables(ingested(tmp_path / "run"), tmp_path / "t")
    assert [table.name for table in tables] == list(FRAMES)
    assert {t.name: t.rows for t in tables}["events"] == 3
    sizes = {file.stem: file.stat().st_size for file in (tmp_path / "t").glob("*.parquet")}
    assert {table.name: table.size_bytes for table in tables} == sizes


def test_frames_are_read_when_they_are_looked_at(tmp_path, monkeypatch):
    write_tables(trace_with(), tmp_path / "t")
    read: list[str] = []
    read_table = store.read_table

    def watch(file, schema):
        read.append(file.name)
        return read_table(file, schema)

    monkeypatch.setattr(store, "read_table", watch)
    trace = read_tables(tmp_path / "t")
    assert read == []
    assert trace.steps.empty
    assert read == ["steps.parquet"]


def test_only_the_folder_is_left_behind(tmp_path):
    write_tables(trace_with(), tmp_path / "new" / "t")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t"]


@pytest.mark.parametrize("path", ["empty", "empty/", "link"])
def test_an_empty_folder_is_filled(tmp_path, path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    write_tables(trace_with(), Path(f"{tmp_path}/{path}"))
    assert holds_tables(tmp_path / "empty")


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(TraceError, match=r"expected a new or empty folder .* with files"):
        write_tables(trace_with(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path):
    (tmp_path / "t").write_text("x")
    with pytest.raises(TraceError, match=r"expected a new or empty folder .* found a file"):
        write_tables(trace_with(), tmp_path / "t")
    assert (tmp_path / "t").read_text() == "x"


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_fault_while_writing_leaves_nothing(tmp_path, monkeypatch, fault):
    def fail(table, schema, file, version):
        file.write_bytes(b"half")
        if schema is STEPS:
            raise fault

    monkeypatch.setattr(store, "write_table", fail)
    with pytest.raises((TraceError, KeyboardInterrupt)) as caught:
        write_tables(trace_with(), tmp_path / "t")
    assert list(tmp_path.iterdir()) == []
    if isinstance(fault, OSError):
        assert "found: No space left on device; give another folder" in str(caught.value)


def test_writing_where_a_file_stands_in_the_way_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="expected to write tables there, found: "):
        write_tables(trace_with(), tmp_path / "file" / "t")


def broken(folder: Path, **changes: object) -> None:
    file = folder / "trace.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


CASES = {
    "no record": (lambda f: (f / "trace.json").unlink(), "found: No such file or directory"),
    "no JSON": (lambda f: (f / "trace.json").write_text("{"), "found text that is not JSON"),
    "no UTF-8": (lambda f: (f / "trace.json").write_bytes(b"\xff"), "found 'utf-8' codec"),
    "a list": (lambda f: (f / "trace.json").write_text("[]"), "found JSON without a schema"),
    "foreign": (lambda f: broken(f, schema="x/1"), "found schema 'x/1'"),
    "newer": (lambda f: broken(f, schema="moeprof.trace/2"), "moeprof.trace/2: another version"),
    "no meta": (lambda f: broken(f, meta={}), "found no value for 'path'"),
    "odd meta": (lambda f: broken(f, meta=7), "found 7 where an object is expected"),
    "odd trust": (lambda f: broken(f, trust=["x"]), "found 'x' where an object is expected"),
    "a need of another version": (
        lambda f: broken(f, trust=[{"check": "a", "verdict": "ok", "detail": "", "breaks": ["X"]}]),
        "found need 'X'",
    ),
    "odd verdict": (
        lambda f: broken(f, trust=[{"check": "a", "verdict": "?", "detail": ""}]),
        r"found verdict '\?'",
    ),
    "no table": (lambda f: (f / "steps.parquet").unlink(), "steps.parquet: .* no such file"),
    "cut table": (lambda f: os.truncate(f / "steps.parquet", 50), "found 50 bytes; copy the"),
    "unlisted": (lambda f: broken(f, tables={}), "events.parquet: expected a table, found"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_that_is_not_whole_is_one_clear_line(tmp_path, case):
    write_tables(trace_with(META), tmp_path / "t")
    change, text = CASES[case]
    change(tmp_path / "t")
    with pytest.raises(TraceError, match=text) as caught:
        read_tables(tmp_path / "t")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 't'}/")


def places(document, at=()):
    """The way to every value in a document."""
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inside:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


RECORD = to_json(Record(META, (Law("a", "ok", "b"),), (StoredTable("events", 1, 2),)))
PLACES = list(places(json.loads(RECORD)))


@pytest.mark.parametrize("value", [None, True, -1.5, 10**400, "x", [], {}, [[]], {"x": 1}])
def test_a_value_of_another_kind_is_read_or_told(value):
    for *way, last in PLACES:
        document = json.loads(RECORD)
        reduce(getitem, way, document)[last] = value
        try:
            assert isinstance(from_json(json.dumps(document)), Record)
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_json_nested_beyond_reason_is_no_record():
    with pytest.raises(TraceError, match="not JSON"):
        from_json("[" * 100_000)


def test_the_trace_json_of_another_program_makes_no_folder_of_tables(tmp_path):
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    assert not holds_tables(tmp_path)


def test_tables_that_lost_their_record_are_told(tmp_path):
    write_tables(trace_with(), tmp_path)
    (tmp_path / "trace.json").unlink()
    assert holds_tables(tmp_path)


def test_keys_that_a_later_release_adds_are_passed_over(tmp_path):
    write_tables(trace_with(META), tmp_path / "t")
    broken(tmp_path / "t", more={"x": 1})
    assert read_tables(tmp_path / "t").meta == moved(META, tmp_path / "t")
