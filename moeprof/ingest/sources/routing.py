"""Question: which tokens went to which expert, where the run recorded it?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from moeprof.errors import TableError, TraceError
from moeprof.ingest.unreadable import unreadable
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.schema import Schema


def read_routing(run: Path | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`ROUTING` and `RECEIVED` out of ``RUN/routing``; empty where there is none.

    Raises:
        TraceError: a table is there and cannot be read.
    """
    if run is None:
        return ROUTING.frame(), RECEIVED.frame()
    try:
        files = sorted((run / "routing").glob("*.parquet"))
    except OSError as error:
        raise unreadable(run / "routing", error) from error
    received = [file for file in files if file.name.startswith("received-")]
    routing = [file for file in files if file not in received]
    return _read(routing, ROUTING), _read(received, RECEIVED)


def _read(files: list[Path], schema: Schema) -> pd.DataFrame:
    frames = [_one(file, schema) for file in files]
    if not frames:
        return schema.frame()
    return schema.check(pd.concat(frames, ignore_index=True))


def _one(file: Path, schema: Schema) -> pd.DataFrame:
    try:
        table = pd.read_parquet(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TraceError(f"{file}: expected a Parquet table, found {error}; remove it") from error
    try:
        return schema.check(table)
    except TableError as error:
        raise TraceError(f"{file}: {error}; remove it") from error
