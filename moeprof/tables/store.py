"""Question: how does a trace stand in a folder of tables, and come back?

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
from dataclasses import replace
from functools import partial
from pathlib import Path

from moeprof.errors import TraceError
from moeprof.redact import redacted, redacted_record
from moeprof.tables.lazy import Loader
from moeprof.tables.parquet import read_table, write_table
from moeprof.tables.trace import FRAMES, Trace, TraceMeta
from moeprof.tables.trace_json import FAMILY, SCHEMA, Record, StoredTable, from_json, to_json

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


def _write(trace: Trace, name: str, place: Path) -> StoredTable:
    file = place / f"{name}.parquet"
    table = getattr(trace, name)
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
