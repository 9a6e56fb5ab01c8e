"""Question: which tokens went to which expert, where the run recorded it?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from moeprof.errors import TableError, TraceError
from moeprof.ingest.unreadable import unreadable
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.schema import Schema

_SIGNED = ("step", "rank")  # a rank of -1 is one that nobody knows


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


def readable_routing(
    run: Path | None,
) -> tuple[tuple[pd.DataFrame, pd.DataFrame], tuple[str, ...]]:
    """What `read_routing` gives, or no routing and why: the times of the run do not need it."""
    try:
        return read_routing(run), ()
    except TraceError as error:
        return (ROUTING.frame(), RECEIVED.frame()), (f"no routing is known: {error}",)


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
        counts = schema.check(_as_int64(table, schema))
    except TableError as error:
        raise TraceError(f"{file}: {error}; remove it") from error
    negative = [name for name in schema.names if name not in _SIGNED and (counts[name] < 0).any()]
    if negative:
        raise TraceError(
            f"{file}: expected numbers from 0 in column '{negative[0]}', found "
            f"{counts[negative[0]].min()}; remove it"
        )
    return counts


def _as_int64(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Counts of any width and sign, and floats that are whole, as the schema has them."""
    names = [name for name in schema.names if name in table.columns]
    kept = {name: table[name] for name in names if _are_whole(table[name])}
    return table.assign(**{name: values.astype("int64") for name, values in kept.items()})


def _are_whole(values: pd.Series) -> bool:
    if values.isna().any() or not pd.api.types.is_numeric_dtype(values):
        return False
    numbers = values.to_numpy()
    return bool(values.dtype != "bool" and (numbers == numbers.round()).all())


def routing_notes(run: Path | None) -> tuple[str, ...]:
    """What lies in ``RUN/routing`` and is no table: a file whose writer was stopped, say."""
    try:
        cut = sorted((run / "routing").glob("*.partial")) if run is not None else []
    except OSError:
        return ()
    return tuple(
        f"{file}: the recorded routing was not written to its end, so it is left out"
        for file in cut
    )
