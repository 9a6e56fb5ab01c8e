"""Stamps of several files that state what they count from, on one axis.

PyTorch's profiler writes ``baseTimeNanoseconds`` into each file. Files of one machine then lie as
they were recorded; clocks of machines differ all the same, so this aligns none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moeprof.ingest.host import Host
from moeprof.ingest.planes.record import Record


def on_one_start(hosts: Sequence[Host]) -> list[Host]:
    """Hosts whose stamps count from the earliest base, where every one states its own."""
    bases = {host.base_ns for host in hosts}
    if len(bases) < 2 or min(bases) <= 0:
        return list(hosts)
    first = min(bases)
    return [
        replace(host, record=_later(host.record, host.base_ns - first), base_ns=first)
        for host in hosts
    ]


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
