from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pytest
from builders.sessions import read_routing

from moeprof.errors import TraceError
from moeprof.ingest.sources.routing import routing_notes
from moeprof.tables.routing import RECEIVED


def received(run, table):
    file = run / "routing" / "received-p0.parquet"
    file.parent.mkdir()
    table.to_parquet(file)
    return file


def test_a_table_without_its_columns_is_named(tmp_path):
    file = received(tmp_path, pd.DataFrame({"step": [1]}))
    with pytest.raises(TraceError, match="lacks column") as caught:
        read_routing(tmp_path)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    "error",
    [pa.ArrowNotImplementedError("no such codec"), pa.ArrowKeyError("x"), pa.ArrowInvalid("y")],
)
def test_whatever_arrow_cannot_read_is_told_with_the_file(tmp_path, error):
    file = received(tmp_path, RECEIVED.frame())
    with (
        patch("pyarrow.parquet.ParquetFile", side_effect=error),
        pytest.raises(TraceError) as caught,
    ):
        read_routing(tmp_path)
    assert str(caught.value).startswith(f"{file}: expected a Parquet table, found ")


@pytest.mark.parametrize("kind", ["int32", "uint16", "float64", "Int64"])
def test_counts_of_other_widths_are_read(tmp_path, kind):
    (tmp_path / "routing").mkdir()
    row = {"step": 4, "layer": 1, "expert": 2, "rank": 0, "tokens": 77}
    pd.DataFrame([row]).astype(kind).to_parquet(tmp_path / "routing" / "p0.parquet")
    routing, _ = read_routing(tmp_path)
    assert routing.to_dict("records") == [row]


def test_counts_that_are_no_whole_numbers_are_refused(tmp_path):
    (tmp_path / "routing").mkdir()
    row = {"step": 4, "layer": 1, "expert": 2, "rank": 0, "tokens": 7.5}
    pd.DataFrame([row]).to_parquet(tmp_path / "routing" / "p0.parquet")
    with pytest.raises(TraceError, match="column 'tokens': expected int64"):
        read_routing(tmp_path)


def test_a_table_that_was_not_written_to_its_end_is_named(tmp_path):
    (tmp_path / "routing").mkdir()
    (tmp_path / "routing" / "p0.partial").write_bytes(b"PAR1")
    (note,) = routing_notes(tmp_path)
    assert "p0.partial: the recorded routing was not written to its end" in note
    assert routing_notes(None) == ()


def test_a_count_below_zero_is_one_clear_line(tmp_path):
    (tmp_path / "routing").mkdir()
    row = {"step": 4, "layer": 1, "expert": 2, "rank": 0, "tokens": -3}
    pd.DataFrame([row]).to_parquet(tmp_path / "routing" / "p0.parquet")
    with pytest.raises(TraceError, match=r"from 0 in column 'tokens', found -3; remove it"):
        read_routing(tmp_path)
