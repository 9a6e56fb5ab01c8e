import dataclasses

import pandas as pd
import pytest

from moeprof.errors import TableError
from moeprof.tables import trace
from moeprof.tables.schema import Column, Schema

LOAD = Schema("load", (Column("layer", "int64", "", "layer"), Column("name", "text", "", "name")))
TABLES = [value for value in vars(trace).values() if isinstance(value, Schema)]


def test_rows_get_the_stated_types_in_order():
    frame = LOAD.frame([{"name": "a", "layer": 1}])
    assert list(frame.columns) == ["layer", "name"]
    assert frame["layer"].dtype == "int64"


def test_no_row_still_has_the_columns():
    assert list(LOAD.frame().columns) == ["layer", "name"]
    assert LOAD.frame()["layer"].dtype == "int64"


def test_columns_work_as_rows_do():
    columns = LOAD.frame({"layer": [1, 2], "name": ["a", "b"]})
    rows = LOAD.frame([{"layer": 1, "name": "a"}, {"layer": 2, "name": "b"}])
    pd.testing.assert_frame_equal(columns, rows)


def test_columns_that_nobody_stated_are_dropped():
    assert list(LOAD.frame({"layer": [1], "name": ["a"], "more": [2]}).columns) == LOAD.names


def test_a_missing_column_is_named():
    with pytest.raises(TableError, match=r"'load' lacks column\(s\) name \(it has: layer\)"):
        LOAD.check(pd.DataFrame({"layer": [1]}))


def test_a_wrong_type_is_named():
    with pytest.raises(TableError, match="column 'layer': expected int64, found float64"):
        LOAD.check(LOAD.frame([{"layer": 1, "name": "a"}]).astype({"layer": "float64"}))


def test_times_and_sizes_of_a_trace_carry_their_unit_in_the_name():
    units = {"ns", "bytes"}
    for schema in TABLES:
        for column in schema.columns:
            assert column.meaning
            if column.unit in units:
                assert column.name.endswith(f"_{column.unit}")
                assert column.kind == "int64"


def test_every_frame_of_a_trace_has_a_schema():
    fields = [field.name for field in dataclasses.fields(trace.Trace)]
    assert fields == ["meta", "trust", *trace.FRAMES]
    assert {schema.name for schema in TABLES} == {s.name for s in trace.FRAMES.values()}
