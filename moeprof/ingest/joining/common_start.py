"""Stamps of several files that state what they count from, on one axis.

PyTorch's profiler writes ``baseTimeNanoseconds`` into each file. Files of one machine then lie as
they were recorded; clocks of machines differ all the same, so this aligns none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from moeprof.ingest.host import Host
from moeprof.ingest.planes.record import Record
from moeprof.units import format_ns


class Placed(NamedTuple):
    """Hosts, and what was done to their stamps; empty where nothing was."""

    hosts: list[Host]
    notes: tuple[str, ...]


def on_one_start(hosts: Sequence[Host]) -> Placed:
    """Hosts whose stamps count from the earliest base, where every one states its own."""
    bases = {host.base_ns for host in hosts}
    if len(bases) < 2 or min(bases) <= 0:
        return Placed(list(hosts), ())
    first = min(bases)
    moved = [
        replace(host, record=_later(host.record, host.base_ns - first), base_ns=first)
        for host in hosts
    ]
    last = max(hosts, key=lambda host: host.base_ns)
    by = format_ns(last.base_ns - first)
    note = (
        f"files placed by their baseTimeNanoseconds: {last.name} counts from {by} after the first"
    )
    return Placed(moved, (note,))


def recorded_window(host: Host, events: pd.DataFrame) -> tuple[str, int, int]:
    """Name of a host, when its capture began and ended, in ns since 1970; 0 where nothing tells.

    Of a file that states its base alone, when its first work began and its last one ended.
    """
    mine = events[events["host"] == host.name] if host.base_ns and not host.started_ns else None
    if mine is None or mine.empty:
        return host.name, host.started_ns, host.stopped_ns
    ends = mine["start_ns"] + mine["duration_ns"]
    return host.name, host.base_ns + int(mine["start_ns"].min()), host.base_ns + int(ends.max())


def _later(record: Record, by_ns: int) -> Record:
    """All stamps of a record moved."""
    if not by_ns:
        return record
    known = record.known_until_ns
    return replace(
        record,
        work=[
            part.assign(start_ns=part["start_ns"] + by_ns, end_ns=part["end_ns"] + by_ns)
            for part in record.work
        ],
        markers=[
            marker._replace(start_ns=marker.start_ns + by_ns, end_ns=marker.end_ns + by_ns)
            for marker in record.markers
        ],
        launches=[launch._replace(start_ns=launch.start_ns + by_ns) for launch in record.launches],
        known_until_ns=None if known is None else known + by_ns,
    )
