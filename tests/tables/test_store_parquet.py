import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders.frames import frames
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeprof.errors import TableError, TraceError
from moeprof.tables.schema import Column, Schema
from moeprof.tables.store import read_table, write_table
from moeprof.tables.trace import FRAMES

LOAD = Schema(
    "load",
    (
        Column("size_bytes", "int64", "bytes", "size", heading="Size"),
        Column("share", "float64", "ratio", "part of the whole; NaN where it is not known"),
        Column("host", "label", "", "host"),
    ),
)
ROWS = {"size_bytes": [1, 2, 3], "share": [0.5, np.nan, np.inf], "host": ["b", "a", "b"]}
V = "moeprof.trace/1"


@settings(max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.sampled_from(list(FRAMES.values())).flatmap(lambda s: st.tuples(st.just(s), frames(s))))
def test_every_frame_comes_back_as_it_was(tmp_path, case):
    schema, frame = case
    write_table(frame, schema, tmp_path / "t.parquet", V)
    pd.testing.assert_frame_equal(
        read_table(tmp_path / "t.parquet", schema).pandas(), frame, check_exact=True
    )


def test_labels_keep_their_order_and_those_that_no_row_has(tmp_path):
    hosts = pd.Categorical(["b"], categories=pd.Index(["z", "b", "a"], dtype="str"))
    frame = LOAD.check(pd.DataFrame({"size_bytes": [1], "share": [1.0], "host": hosts}))
    write_table(frame, LOAD, tmp_path / "t.parquet", V)
    back = read_table(tmp_path / "t.parquet", LOAD).pandas()
    assert back["host"].cat.categories.tolist() == ["z", "b", "a"]


def test_many_long_labels_keep_their_order(tmp_path):
    names = pd.Index([f"{i * 7919 % 30011:0100d}" for i in range(30011)], dtype="str")  # 3 MB
    codes = np.arange(60022) % 30011
    frame = pd.DataFrame(
        {"size_bytes": 1, "share": 1.0, "host": pd.Categorical.from_codes(codes, names)}
    )
    write_table(frame, LOAD, tmp_path / "t.parquet", V)
    back = read_table(tmp_path / "t.parquet", LOAD).pandas()
    pd.testing.assert_frame_equal(back, frame)


def test_the_file_says_what_its_columns_mean(tmp_path):
    write_table(LOAD.frame(ROWS), LOAD, tmp_path / "t.parquet", V)
    metadata = pq.read_metadata(tmp_path / "t.parquet").metadata
    assert metadata[b"moeprof.table"] == b"load"
    assert metadata[b"moeprof.schema"] == b"moeprof.trace/1"
    assert json.loads(metadata[b"moeprof.columns"])[0] == {
        "name": "size_bytes", "kind": "int64", "unit": "bytes", "meaning": "size",
    }  # fmt: skip


def test_other_programs_see_an_unknown_figure_as_null(tmp_path):
    write_table(LOAD.frame(ROWS), LOAD, tmp_path / "t.parquet", V)
    with (tmp_path / "t.parquet").open("rb") as file:
        assert pq.read_table(file)["share"].to_pylist() == [0.5, None, float("inf")]


def test_a_frame_of_another_schema_is_not_written(tmp_path):
    with pytest.raises(TableError, match="lacks column"):
        write_table(pd.DataFrame({"size_bytes": [1]}), LOAD, tmp_path / "t.parquet", V)
    assert list(tmp_path.iterdir()) == []


def wrong_name(file):
    write_table(LOAD.frame(ROWS), Schema("other", LOAD.columns), file, V)


def foreign(file):
    pq.write_table(pa.table({"a": [1]}), file)


def damaged(file):
    write_table(LOAD.frame(ROWS), LOAD, file, V)
    file.write_bytes(file.read_bytes()[:-9])


def damaged_inside(file):
    write_table(LOAD.frame(ROWS), LOAD, file, V)
    raw = file.read_bytes()
    file.write_bytes(raw[:4] + b"\xff" * 100 + raw[104:])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (wrong_name, "expected the table 'load', found 'other'"),
        (foreign, "found a Parquet file of another program"),
        (damaged, "expected a Parquet table, found: "),
        (damaged_inside, "expected a Parquet table, found: "),
        (lambda file: file.write_bytes(b""), "expected a Parquet table, found: "),
        (lambda file: file.write_text("<html>"), "expected a Parquet table, found: "),
        (lambda file: None, "expected a Parquet table, found: "),
    ],
)
def test_a_file_that_is_not_the_table_is_one_clear_line(tmp_path, make, text):
    file = tmp_path / "load.parquet"
    make(file)
    with pytest.raises(TraceError, match=text) as caught:
        read_table(file, LOAD)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_column_of_another_type_names_file_and_column(tmp_path):
    texts = Schema("load", (Column("size_bytes", "text", "", "size"), *LOAD.columns[1:]))
    write_table(texts.frame({**ROWS, "size_bytes": ["1", "2", "3"]}), texts, tmp_path / "t", V)
    with pytest.raises(TableError, match="t: table 'load', column 'size_bytes': expected int64"):
        read_table(tmp_path / "t", LOAD)


def test_a_path_with_a_colon_and_an_equals_sign_is_a_path(tmp_path, monkeypatch):
    folder = tmp_path / "s3:" / "size_bytes=9"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    file = folder.relative_to(tmp_path) / "t.parquet"
    write_table(LOAD.frame(ROWS), LOAD, file, V)
    assert read_table(file, LOAD)["size_bytes"].tolist() == [1, 2, 3]
