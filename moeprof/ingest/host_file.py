"""Question: what did one profile file, the work of one process, record?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from moeprof.errors import TraceError
from moeprof.ingest.chrome_json import JSON_SUFFIXES, read_json_trace
from moeprof.ingest.hlo.programs import METADATA_PLANE, read_programs
from moeprof.ingest.joining.common_clock import with_causal_stamps
from moeprof.ingest.joining.named_programs import join_by_name
from moeprof.ingest.planes.cpu_plane import read_cpu_work
from moeprof.ingest.planes.device_planes import (
    IMPOSSIBLE_DEVICE,
    device_ids,
    gpu_ordinal,
    has_impossible_ordinal,
    tpu_ordinal,
)
from moeprof.ingest.planes.gpu_plane import host_calls, read_gpu_work
from moeprof.ingest.planes.host_plane import (
    HOST_PLANE,
    NO_RUN_IDS,
    executed,
    gpu_run_ids,
    read_calls,
    read_host_events,
    read_host_facts,
)
from moeprof.ingest.planes.record import A_DATE_NS, Host, Labels, Record
from moeprof.ingest.planes.tpu_plane import read_tpu_work
from moeprof.ingest.sources.run_record import Counting
from moeprof.ingest.sources.sessions import ENVIRONMENT_PLANE, STARTED, STOPPED, host_name
from moeprof.ingest.trust.whole_input import merged
from moeprof.ingest.xspace.open_space import open_space
from moeprof.ingest.xspace.space import PlaneHead, Space, SpaceHead
from moeprof.specs.hardware import amd_device
from moeprof.tables.law import Law, Need


def read_file(file: Path, counting: Counting | None) -> list[Host]:
    """Read one profile file, the work of one process whose steps capture counted so.

    A JSON trace may hold several processes, each of which is a host of its own.

    Raises:
        TraceError: the file is empty, no profile, or holds no readable plane.
    """
    if file.name.endswith(JSON_SUFFIXES):
        hosts = read_json_trace(file)
        for host in hosts:
            with_causal_stamps(host.record)
        return [replace(_judged(host), counting=counting) for host in hosts]
    with closing(open_space(file)) as space:
        return [replace(_read_space(file, space), counting=counting)]


def _judged(host: Host) -> Host:
    """With what is to be said of the other processes in its file."""
    if host.record.merged is not None:
        host.record.checks.append(merged(host.record.merged))
    return host


def _read_space(file: Path, space: Space) -> Host:
    head = space.head
    if not any(plane.name for plane in head.planes):
        reason = str(head.damage[0]) if head.damage else "no plane in it"
        raise TraceError(
            f"{file}: expected an XSpace protobuf, found bytes that are none ({reason}); give what "
            "JAX's profiler wrote, or capture it again"
        )
    record = Record(Labels())
    planes = {plane.name: plane for plane in head.planes}
    metadata, environment = planes.get(METADATA_PLANE), planes.get(ENVIRONMENT_PLANE)
    started_ns, stopped_ns = (_date_ns(environment, name) for name in (STARTED, STOPPED))
    zero_ns = _zero_ns(head, started_ns)
    _read_work(space, planes.get(HOST_PLANE), zero_ns, record)
    programs = read_programs(space, metadata, record.damage) if metadata else {}
    join_by_name(record, programs)
    record.damage.extend(_damage(head))
    record.checks.extend(_captures_in_one(head))
    return Host(
        name=_host_name(file, head),
        platform=_platform(head, record),
        jax_version=str(metadata.stats.get("jax_version", "")) if metadata else "",
        record=record,
        programs=programs,
        models=_models(head),
        messages=(*head.errors, *head.warnings),
        counting=None,
        started_ns=started_ns,
        stopped_ns=stopped_ns,
        file=file,
        zero_ns=zero_ns,
    )


def _captures_in_one(head: SpaceHead) -> Iterator[Law]:
    """A fault where a device has several planes: captures that stand one behind the other."""
    planes = Counter(
        plane.name
        for plane in head.planes
        if gpu_ordinal(plane.name) is not None and any(line.events for line in plane.lines)
    )
    if twice := [name for name, count in planes.items() if count > 1]:
        detail = (
            f"'{twice[0]}' has {planes[twice[0]]} planes with work: several captures are in one "
            "file, whose times mean nothing together; give each in a file of its own"
        )
        figures = (1, planes[twice[0]], "captures in a file")
        yield Law("one_run", "fail", detail, (Need.DEVICE_TIMES,), *figures)


def _date_ns(environment: PlaneHead | None, name: str) -> int:
    """A date of the capture, 0 where it is not told."""
    told = environment.stats.get(name) if environment else 0
    return told if isinstance(told, int) and 0 < told < 2**63 else 0


def _read_work(space: Space, host: PlaneHead | None, zero_ns: int, record: Record) -> None:
    devices = [(plane, gpu_ordinal(plane.name)) for plane in space.head.planes]
    runs, events = NO_RUN_IDS, None
    if host is not None:
        events = read_host_events(space, host, zero_ns, record)
        read_host_facts(events, record)
        read_cpu_work(events, record, are_calls=_have_events(devices))
        if any(device is not None for _, device in devices):
            runs = gpu_run_ids(events)
            record.calls = read_calls(events)
            record.called = host_calls(events, runs)
            record.executed = executed(events)
    for plane, device in devices:
        if device is not None:
            read_gpu_work(space, plane, device, runs, zero_ns, record)
        elif tpu_ordinal(plane.name) is not None:
            read_tpu_work(space, plane, zero_ns, record)
        elif has_impossible_ordinal(plane.name):
            record.drop(IMPOSSIBLE_DEVICE, sum(line.events for line in plane.lines))
    if events is not None:
        record.ids.update(device_ids(events, record, list(_models(space.head))))
    record.work = [part.pandas() for part in record.work]  # bridge
    record.waits = [part.pandas() for part in record.waits]  # bridge
    with_causal_stamps(record)


def _have_events(devices: Sequence[tuple[PlaneHead, int | None]]) -> bool:
    """Whether a device recorded anything on a plane of its own."""
    return any(
        line.events
        for plane, gpu in devices
        if gpu is not None or tpu_ordinal(plane.name) is not None
        for line in plane.lines
    )


def _damage(head: SpaceHead) -> list[str]:
    """What the reader could not make sense of, at most a bounded number of places."""
    more = head.damaged_places - len(head.damage)
    return [*map(str, head.damage), *([f"and {more:,} more place(s)"] if more > 0 else [])]


def _models(head: SpaceHead) -> dict[int, str]:
    models: dict[int, str] = {}
    for plane in head.planes:
        device = gpu_ordinal(plane.name)
        device = tpu_ordinal(plane.name) if device is None else device
        if device is not None:
            model = plane.stats.get("gpu_device_name") or plane.stats.get("device_type_string", "")
            models[device] = models.get(device) or str(model)  # a SparseCore's plane names none
    return models | _amd_models(head)


def _amd_models(head: SpaceHead) -> dict[int, str]:
    """AMD's profiler names no device, but tells what those have that ran something: the others of
    a machine are like these."""
    found: dict[int, str] = {}
    for plane in head.planes:
        device = gpu_ordinal(plane.name)
        if device is not None and plane.stats.get("device_vendor") == "AMD":
            facts = [plane.stats.get(name) for name in ("core_count", "clock_rate", "memory_size")]
            numbers = [fact for fact in facts if isinstance(fact, int)]
            found[device] = amd_device(*numbers) if len(numbers) == len(facts) else ""
    named = set(found.values()) - {""}
    same = named.pop() if len(named) == 1 else ""
    return {device: model or same for device, model in found.items()}


def _platform(head: SpaceHead, record: Record) -> str:
    names = [plane.name for plane in head.planes]
    if any(name.startswith("/device:GPU") for name in names):
        return "gpu"
    if any(name.startswith("/device:TPU") for name in names):
        return "tpu"
    return "cpu" if record.work else "unknown"


def _host_name(file: Path, head: SpaceHead) -> str:
    """Names of files never collide in a session, host names of one machine do."""
    return host_name(file) or (head.hostnames[0] if head.hostnames else "host")


def _zero_ns(head: SpaceHead, started_ns: int) -> int:
    """What to take off every stamp: 0 where lines count from the start of the capture."""
    lines = [(line.timestamp_ns, line.events) for p in head.planes for line in p.lines]
    dates = [stamp for stamp, _ in lines if stamp >= A_DATE_NS]
    events = sum(count for _, count in lines)
    if 2 * sum(count for stamp, count in lines if stamp >= A_DATE_NS) <= events or not dates:
        return 0  # a stamp of 0 on a line or two does not make the others no dates
    return started_ns or min(dates)
