"""Question: how does a trace stand in a folder of Parquet tables, and come back?

``trace.json`` and one Parquet file per frame, ``events.parquet`` and so on, and a copy of what
`moeprof capture` wrote down about the run. A folder appears whole or not at all; frames are read
at the first look at them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moeprof.columns.coded import Coded
from moeprof.columns.table import Column as Values
from moeprof.columns.table import Given, Table
from moeprof.errors import TableError, TraceError
from moeprof.redact import redacted, redacted_record
from moeprof.tables.once import Loader
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import FRAMES, FrameName, Trace, TraceMeta
from moeprof.tables.trace_json import FAMILY, SCHEMA, Record, StoredTable, from_json, to_json

if TYPE_CHECKING:
    import pyarrow as pa

_RECORD = "trace.json"
_CAPTURE = "meta.json"  # of the run folder


def write_tables(trace: Trace, folder: Path) -> tuple[StoredTable, ...]:
    """Write every frame of `trace`, its meta and its trust record into `folder`, which is new.

    Returns:
        Rows and file size of each table, in the order of `FRAMES`.

    Raises:
        TraceError: `folder` exists and is not an empty folder, or it cannot be written.
        TableError: a frame has not its schema.
    """
    try:
        with _new_folder(Path(os.path.realpath(folder))) as place:
            tables = tuple(_write(trace, name, place) for name in FRAMES)
            text = to_json(Record(trace.meta, trace.trust, tables))
            (place / _RECORD).write_text(text, encoding="utf-8")
            if trace.meta.run_folder and (Path(trace.meta.run_folder) / _CAPTURE).is_file():
                _copy_capture(Path(trace.meta.run_folder) / _CAPTURE, place / _CAPTURE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(
            f"{folder}: expected to write tables there, found: {reason}; give another folder"
        ) from error
    return tables


def _copy_capture(record: Path, place: Path) -> None:
    """What capture wrote of the run, without the secrets that older versions left in it."""
    text = record.read_text(encoding="utf-8", errors="replace")
    try:
        told = json.loads(text)
        shown = redacted_record(told)
        text = text if shown == told else json.dumps(shown, indent=1)
    except (ValueError, RecursionError):
        text = redacted(text)
    place.write_text(text, encoding="utf-8")


def holds_tables(folder: Path) -> bool:
    """Whether `folder` looks like one that `write_tables` made, whole or not.

    Other programs write a ``trace.json`` too. False where nothing may be looked at.
    """
    try:
        with (folder / _RECORD).open("rb") as file:
            if FAMILY.encode() in file.read(64):
                return True
    except OSError:
        pass
    return os.path.isfile(folder / "events.parquet")


def read_tables(folder: Path) -> Trace:
    """Open a folder that `write_tables` made. Reads ``trace.json``; frames when looked at.

    Its meta names `folder` as path, and as run folder if capture's record is in it; a note says
    where the tables came from.

    Raises:
        TraceError: it is no such folder, of another version, or not whole. Looking at a frame
            raises it where the frame's file is damaged.
    """
    file = folder / _RECORD
    expected = f"{file}: expected a trace of {SCHEMA}"
    try:
        record = from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(
            f"{expected}, found: {reason}; give a folder that `moeprof export --tables` wrote"
        ) from error
    except (TraceError, UnicodeDecodeError) as error:
        raise TraceError(f"{expected}, found {error}") from error
    _require_whole(folder, {table.name: table for table in record.tables})
    loaders: dict[str, Loader] = {
        name: partial(read_table, folder / f"{name}.parquet", schema)
        for name, schema in FRAMES.items()
    }
    return Trace(_moved(record.meta, folder), record.trust, **loaders)


def _write(trace: Trace, name: FrameName, place: Path) -> StoredTable:
    file = place / f"{name}.parquet"
    table = trace.table(name)
    write_table(table, FRAMES[name], file, SCHEMA)
    return StoredTable(name, len(table), file.stat().st_size)


def _moved(meta: TraceMeta, folder: Path) -> TraceMeta:
    """The run folder that it was written from may be gone, or hold another run by now."""
    return replace(
        meta,
        path=str(folder),
        run_folder=str(folder) if (folder / _CAPTURE).is_file() else "",
        notes=(*meta.notes, f"tables written from {meta.path}"),
    )


def _require_whole(folder: Path, stated: dict[str, StoredTable]) -> None:
    """Every table must be there in the size that was written: a copy may have been cut short."""
    for name in FRAMES:
        file = folder / f"{name}.parquet"
        expected = f"{stated[name].size_bytes:,} bytes" if name in stated else "a table"
        found = f"{file.stat().st_size:,} bytes" if file.is_file() else "no such file"
        if found != expected:
            raise TraceError(
                f"{file}: expected {expected}, found {found}; copy the whole folder again, "
                "or export it again"
            )


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill beside `folder`, which takes its place at the end; nothing after a fault."""
    if folder.exists() and not _is_empty_folder(folder):
        found = "a folder with files" if folder.is_dir() else "a file"
        raise TraceError(
            f"{folder}: expected a new or empty folder for the tables, found {found}; "
            "give another, nothing is overwritten"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    place.mkdir()
    try:
        yield place
        place.replace(folder)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _is_empty_folder(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


# How does a table with a schema stand in a Parquet file?
#
# int64, float64 and bool as they are; NaN as null, so that other tools leave it out of their
# sums; text as strings; labels as dictionaries in their order. What each column means stands in
# the file.

_TABLE, _COLUMNS, _VERSION = b"moeprof.table", b"moeprof.columns", b"moeprof.schema"
_DICTIONARY_LIMIT_BYTES = 2**30  # at the default of 1 MiB labels lose their order


def _arrow_types() -> dict[str, pa.DataType]:
    """The Arrow type of each kind of column."""
    import pyarrow as pa

    return {
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.large_string(),
        "label": pa.dictionary(pa.int32(), pa.large_string()),
    }


def write_table(table: Given, schema: Schema, file: Path, version: str) -> None:
    """Write `table` as `file`; ``version`` names the layout of the folder that it is part of.

    The file's own metadata says ``moeprof.table`` (the schema's name), ``moeprof.schema``
    (`version`) and ``moeprof.columns`` (name, kind, unit and meaning of each, as JSON).

    Raises:
        TableError: the table has not this schema.
        OSError: it cannot be written.
    """
    import pyarrow as pa  # 90 ms that reading a profile does not need
    from pyarrow import parquet

    types, checked = _arrow_types(), schema.checked(Table.of(table))
    metadata = {
        _TABLE: schema.name,
        _VERSION: version,
        _COLUMNS: json.dumps([_stated(column) for column in schema.columns]),
    }
    fields = [pa.field(c.name, types[c.kind], metadata={"unit": c.unit}) for c in schema.columns]
    columns = [_to_arrow(checked[c.name], types[c.kind]) for c in schema.columns]
    arrow = pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata))
    with file.open("wb") as out:
        parquet.write_table(
            arrow, out, compression="zstd", dictionary_pagesize_limit=_DICTIONARY_LIMIT_BYTES
        )


def read_table(file: Path, schema: Schema) -> Table:
    """Read what `write_table` wrote, with `schema`'s dtypes and columns.

    Raises:
        TraceError: the file cannot be read, or holds another table.
        TableError: a column is missing or has another type.
    """
    import pyarrow as pa
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
        names = arrow.column_names
        return schema.checked(Table({name: _of_arrow(arrow.column(name)) for name in names}))
    except TableError as error:
        raise TableError(f"{file}: {error}; export it again") from error


def _stated(column: Column) -> dict[str, str]:
    stated = asdict(column)
    del stated["heading"]  # for people who read reports
    return stated


def _to_arrow(column: Values, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if isinstance(column, Coded):
        codes = pa.array(column.codes.astype(np.int32))
        return pa.DictionaryArray.from_arrays(codes, pa.array(column.texts, pa.large_string()))
    return pa.array(column, kind, from_pandas=True)  # NaN is null


def _of_arrow(column: pa.ChunkedArray) -> Values:
    """A column as it was written; one of another type as its values."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        array = column.unify_dictionaries().combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
        return Coded(array.indices.to_numpy(zero_copy_only=False), array.dictionary.to_pylist())
    return column.to_numpy()
