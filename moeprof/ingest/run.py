"""Question: what did this run record? A path in, a `Trace` out."""

from __future__ import annotations

from pathlib import Path

from moeprof.errors import TraceError
from moeprof.ingest.assemble import Source, assemble
from moeprof.ingest.cpu_plane import read_host_plane
from moeprof.ingest.gpu_plane import device_ordinal, read_device_plane, run_ids
from moeprof.ingest.host import Host
from moeprof.ingest.locate import locate, read_bytes
from moeprof.ingest.programs import METADATA_PLANE, read_programs
from moeprof.ingest.routing import read_routing
from moeprof.ingest.run_record import counting_of, meta_damage
from moeprof.ingest.steps import Counting
from moeprof.ingest.work import Record
from moeprof.ingest.xplane import Plane, XSpace, parse_xspace
from moeprof.tables.trace import Trace

_HOST_PLANE = "/host:CPU"
_ENVIRONMENT = "Task Environment"


def open_run(path: str | Path) -> Trace:
    """Read a run folder, a TensorBoard folder, a profile session or one ``.xplane.pb[.gz]``.

    Of several sessions the newest is read and `TraceMeta.notes` says so. Damaged files give what
    can be recovered, and the trust record says how much.

    Raises:
        TraceError: there is no profile at `path`, there are several runs, or nothing in it can be
            read.
    """
    session = locate(path)
    hosts = [read_file(file, counting_of(session.run, file)) for file in session.files]
    hosts[0].record.damage.extend(meta_damage(session.run))
    source = Source(str(path), str(session.run or ""), session.notes)
    return assemble(source, hosts, *read_routing(session.run))


def read_file(file: Path, counting: Counting | None) -> Host:
    """Read one profile file, the work of one process whose steps capture counted so.

    Raises:
        TraceError: the file is empty, no profile, or holds no readable plane.
    """
    data, problem = read_bytes(file)
    space = parse_xspace(data)
    if not any(plane.name for plane in space.planes):
        reason = space.damage[0] if space.damage else "no plane in it"
        raise TraceError(f"{file}: expected an XSpace protobuf, found {reason}; capture it again")
    record = Record(damage=[*([problem] if problem else []), *space.damage])
    planes = {plane.name: plane for plane in space.planes}
    metadata, environment = planes.get(METADATA_PLANE), planes.get(_ENVIRONMENT)
    _read_work(space, planes.get(_HOST_PLANE), record)
    return Host(
        name=_host_name(file, space),
        platform=_platform(space, record),
        jax_version=str(metadata.stats.get("jax_version", "")) if metadata else "",
        zero_ns=_zero_ns(space, environment.stats.get("profile_start_time") if environment else 0),
        record=record,
        programs=read_programs(metadata, record.damage) if metadata else {},
        messages=(*space.errors, *space.warnings),
        counting=counting,
    )


def _read_work(space: XSpace, host: Plane | None, record: Record) -> None:
    if host is not None:
        read_host_plane(host, record)
    devices = [(plane, device_ordinal(plane)) for plane in space.planes]
    runs = run_ids(host) if host is not None and any(d is not None for _, d in devices) else {}
    for plane, device in devices:
        if device is not None:
            read_device_plane(plane, device, runs, record)


def _platform(space: XSpace, record: Record) -> str:
    names = [plane.name for plane in space.planes]
    if any(name.startswith("/device:GPU") for name in names):
        return "gpu"
    if any(name.startswith("/device:TPU") for name in names):
        return "tpu"
    return "cpu" if record.work else "unknown"


def _host_name(file: Path, space: XSpace) -> str:
    """Names of files never collide in a session, host names of one machine do."""
    stem = file.name.removesuffix(".gz").removesuffix(".xplane.pb")
    return stem or (space.hostnames[0] if space.hostnames else "host")


def _zero_ns(space: XSpace, profile_start: object) -> int:
    """What to take off every stamp: 0 where lines count from the start of the capture."""
    stamps = [line.timestamp_ns for p in space.planes for line in p.lines if line.event_spans]
    if not stamps or min(stamps) < 10**17:
        return 0  # 10**17 ns is 1973: no capture lasts so long, so these are no dates
    return profile_start if isinstance(profile_start, int) and profile_start > 0 else min(stamps)
