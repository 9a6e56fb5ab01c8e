"""Question: how does what several hosts did look as tables? Read at the first look at one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from moeprof.ingest.host import Host
from moeprof.ingest.planes.host_side import Calls, HostFile, read_allocations, read_calls
from moeprof.ingest.sources.host_record import Dated, HostRecord, read_host_record
from moeprof.tables.host_side import (
    ALLOCATIONS,
    COMPILE,
    GARBAGE,
    HOST_EVENTS,
    HOST_FACTS,
    LAUNCHES,
)
from moeprof.tables.schema import Schema

_CAPTURE = "moeprof capture"
"""``line`` of events that capture wrote down itself."""


class HostSides:
    """The files and records of all hosts, and the frames that come of them, each read once."""

    def __init__(
        self, hosts: Sequence[Host], run_folder: str, left_out: Collection[str] = ()
    ) -> None:
        """Nothing is read yet. Of `hosts` no more is kept than where their files are.

        `left_out` names files of the folder that are of another run.
        """
        self._files = [HostFile(host.name, host.file, host.zero_ns) for host in hosts]
        self._places = [(host.process, host.started_ns, host.stopped_ns) for host in hosts]
        self._run = Path(run_folder) if run_folder else None
        self._left_out = left_out

    def launches(self) -> pd.DataFrame:
        """`LAUNCHES`."""
        return _stacked([calls.launches for calls in self._calls], LAUNCHES)

    def events(self) -> pd.DataFrame:
        """`HOST_EVENTS`, with what capture wrote down where the profile dates its start."""
        parts = []
        for calls, file, record, place in zip(
            self._calls, self._files, self._records, self._places, strict=True
        ):
            _, started_ns, stopped_ns = place
            written = _written(record, file.name, started_ns, stopped_ns)
            parts.append(_stacked([calls.events, written], HOST_EVENTS))
        return _stacked(parts, HOST_EVENTS, by_start=len(parts) < 2)

    def allocations(self) -> pd.DataFrame:
        """`ALLOCATIONS`."""
        return _stacked([read_allocations(file) for file in self._files], ALLOCATIONS)

    def facts(self) -> pd.DataFrame:
        """`HOST_FACTS`."""
        rows = [
            {"host": file.name, "key": key, "value": value}
            for file, record in zip(self._files, self._records, strict=True)
            for key, value in record.facts.items()
        ]
        return HOST_FACTS.frame(rows)

    @cached_property
    def _calls(self) -> list[Calls]:
        return [read_calls(file) for file in self._files]

    @cached_property
    def _records(self) -> list[HostRecord]:
        return [
            read_host_record(
                None if f"host/p{process}.json" in self._left_out else self._run, process
            )
            for process, _, _ in self._places
        ]


def _written(record: HostRecord, host: str, started_ns: int, stopped_ns: int) -> pd.DataFrame:
    """What capture dated, as rows that touch the recorded window, by start.

    Its dates and the profile's start are of one clock, that of the host since 1970; without a
    dated start they cannot be placed.
    """
    if not started_ns:
        return HOST_EVENTS.frame()
    last_ns = stopped_ns or 2**62
    rows = [
        _row(host, kind, dated, started_ns)
        for kind, found in ((GARBAGE, record.collections), (COMPILE, record.compilations))
        for dated in found
        if dated.start_ns + dated.duration_ns > started_ns and dated.start_ns < last_ns
    ]
    return HOST_EVENTS.frame(sorted(rows, key=lambda row: int(str(row["start_ns"]))))


def _row(host: str, kind: str, dated: Dated, started_ns: int) -> dict[str, object]:
    known = {"host": host, "line": _CAPTURE, "kind": kind, "name": dated.name, "step": -1}
    start_ns = dated.start_ns - started_ns
    return {**known, "start_ns": start_ns, "duration_ns": dated.duration_ns, "size_bytes": -1}


def _stacked(
    parts: Sequence[pd.DataFrame], schema: Schema, *, by_start: bool = True
) -> pd.DataFrame:
    """Frames one behind the other, labels joined; `by_start` puts those of one host in order."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return schema.frame()
    if len(filled) == 1:
        return filled[0]
    labels = [column.name for column in schema.columns if column.kind == "label"]
    whole = pd.concat([part.astype(dict.fromkeys(labels, "str")) for part in filled])
    if by_start and whole["host"].nunique() == 1:
        whole = whole.iloc[np.argsort(whole["start_ns"].to_numpy(), kind="stable")]
    return schema.frame({name: whole[name].reset_index(drop=True) for name in schema.names})
