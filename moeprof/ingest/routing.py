"""Question: which tokens went to which expert, where the run recorded it?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from moeprof.errors import TraceError
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.schema import Schema


def read_routing(profile: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`ROUTING` and `RECEIVED` of the run that `profile` belongs to; empty where none is there.

    The tables stand in ``RUN/routing`` beside ``RUN/plugins/profile/<session>/<file>``.

    Raises:
        TraceError: a table is there and cannot be read.
    """
    above = profile.resolve().parents
    folder = (above[3] if len(above) > 3 else above[-1]) / "routing"
    if profile.parent.parent.name != "profile" or not folder.is_dir():
        return ROUTING.frame(), RECEIVED.frame()
    files = sorted(folder.glob("*.parquet"))
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
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise TraceError(f"{file}: expected a Parquet table, found {error}; remove it") from error
    return schema.check(table)
