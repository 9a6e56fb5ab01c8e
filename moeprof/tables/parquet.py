"""Question: how does a table with a schema stand in a Parquet file?

int64, float64 and bool as they are; NaN as null, so that other tools leave it out of their sums;
text as strings; labels as dictionaries in their order. What each column means stands in the file.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow as pa

from moeprof.errors import TableError, TraceError
from moeprof.tables.schema import Column, Schema

_TABLE, _COLUMNS, _VERSION = b"moeprof.table", b"moeprof.columns", b"moeprof.schema"
_DICTIONARY_LIMIT_BYTES = 2**30  # at the default of 1 MiB labels lose their order
_ARROW = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.large_string(),
    "label": pa.dictionary(pa.int32(), pa.large_string()),
}


def write_table(table: pd.DataFrame, schema: Schema, file: Path, version: str) -> None:
    """Write `table` as `file`; ``version`` names the layout of the folder that it is part of.

    The file's own metadata says ``moeprof.table`` (the schema's name), ``moeprof.schema``
    (`version`) and ``moeprof.columns`` (name, kind, unit and meaning of each, as JSON).

    Raises:
        TableError: the table has not this schema.
        OSError: it cannot be written.
    """
    from pyarrow import parquet  # 40 ms that reading a profile does not need

    metadata = {
        _TABLE: schema.name,
        _VERSION: version,
        _COLUMNS: json.dumps([_stated(column) for column in schema.columns]),
    }
    fields = [pa.field(c.name, _ARROW[c.kind], metadata={"unit": c.unit}) for c in schema.columns]
    arrow = pa.Table.from_pandas(
        schema.check(table), pa.schema(fields), preserve_index=False
    ).replace_schema_metadata(metadata)
    with file.open("wb") as out:
        parquet.write_table(
            arrow, out, compression="zstd", dictionary_pagesize_limit=_DICTIONARY_LIMIT_BYTES
        )


def read_table(file: Path, schema: Schema) -> pd.DataFrame:
    """Read what `write_table` wrote, with `schema`'s dtypes and columns.

    Raises:
        TraceError: the file cannot be read, or holds another table.
        TableError: a column is missing or has another type.
    """
    from pyarrow import parquet

    try:
        with pa.memory_map(str(file)) as source:
            arrow = parquet.ParquetFile(source).read()
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise TraceError(
            f"{file}: expected a Parquet table, found: {reason}; export it again"
        ) from error
    name = (arrow.schema.metadata or {}).get(_TABLE, b"").decode("utf-8", "replace")
    if name != schema.name:
        raise TraceError(
            f"{file}: expected the table '{schema.name}', found "
            f"{repr(name) if name else 'a Parquet file of another program'}; export it again"
        )
    try:
        table = arrow.to_pandas()
        return schema.check(table) if len(table) else schema.frame(table.to_dict("list"))
    except TableError as error:
        raise TableError(f"{file}: {error}; export it again") from error


def _stated(column: Column) -> dict[str, str]:
    stated = asdict(column)
    del stated["heading"]  # for people who read reports
    return stated
