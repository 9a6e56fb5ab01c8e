"""Run folders with the profiles of several hosts, each with its recorded window."""

from __future__ import annotations

from pathlib import Path

from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, host, line, metadata, thunk, xspace

from moeprof.ingest.sources.routing import _files, _read
from moeprof.tables.routing import RECEIVED, ROUTING

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))
NOON_NS = 1_795_867_200_000_000_000  # 2026-11-28 12:00:00 UTC
DAY_NS = 86_400 * 10**9


def profile(window: tuple[int, int] | None = None, steps: int = 3) -> bytes:
    """A CPU run of `steps` executions of one op, recorded from and to these ns after noon."""
    work = [thunk("add", 1000 * i + 10, 100, run_id=i) for i in range(steps)]
    planes = [metadata(p7=PROGRAM), host(line("pool", *work))]
    if window is not None:
        start, stop = window
        stamps = {"profile_start_time": NOON_NS + start, "profile_stop_time": NOON_NS + stop}
        planes.append(Plane("Task Environment", stats=stamps))
    return xspace(*planes)


def write(file: Path, data: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def two_hosts(root: Path) -> Path:
    """A run of hostA and hostB whose windows overlap by 90 %, and one of hostA a day before."""
    sessions = root / "plugins" / "profile"
    write(sessions / "S_36" / "hostA.xplane.pb", profile((0, 10**9)))
    write(sessions / "S_38" / "hostB.xplane.pb", profile((10**8, 11 * 10**8)))
    write(sessions / "S_old" / "hostA.xplane.pb", profile((-DAY_NS, 10**9 - DAY_NS), steps=1))
    return root


def read_routing(run):
    """`ROUTING` and `RECEIVED` out of ``RUN/routing``; empty where there is none."""
    routing, received = _files(run)
    return _read(routing, ROUTING).pandas(), _read(received, RECEIVED).pandas()
