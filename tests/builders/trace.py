"""A `Trace` out of built planes, read by the real readers."""

from __future__ import annotations

from pathlib import Path

from builders.xspace import Event, Plane, host, line, metadata, xspace

from moeprof.ingest import open_run
from moeprof.tables.trace import Trace


def trace_of(folder: Path, program: bytes, *work: Event, more: tuple[Plane, ...] = ()) -> Trace:
    """A CPU run of program 7 whose thread did `work`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=program), host(line("pool", *work)), *more))
    return open_run(file)
