from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pytest

from moeprof.errors import TraceError
from moeprof.ingest.sources.routing import read_routing
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
    with patch("pandas.read_parquet", side_effect=error), pytest.raises(TraceError) as caught:
        read_routing(tmp_path)
    assert str(caught.value).startswith(f"{file}: expected a Parquet table, found ")
