"""Question: what does the host plane say about device work on XLA:CPU, and about steps?

All virtual devices share one pool of threads and one plane; the device of an event is its
``device_ordinal``. An op that hands its work to the pool and returns has two events: the op, and
``end: <op>`` when the work is done, paired by a flow id. The op lasts until then; the second
event is not work of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from moeprof.ingest.work import Launch, Marker, Record, Wait, Work, is_sound
from moeprof.ingest.xplane import Line, Plane, StatValue, events, int_stat, stat_values

_NOISE = ("ThreadpoolListener::", "ThunkExecutor::", "Wait: pending_threads", "InvokeRendezvous")
_COMPILES = ("backend_compile", "PyClient::Compile", "CompileAndLoad", "TfrtCpuClient::Compile")

Flow = tuple[StatValue, StatValue]


def read_host_plane(plane: Plane, record: Record) -> None:
    """Add the plane's device work (CPU runs), rendezvous, markers and launches to `record`."""
    ends: dict[Flow, int] = {}
    thunks: list[tuple[Work, Flow | None]] = []
    for line in plane.lines:
        waits: list[tuple[str, int, int]] = []
        mine: list[tuple[Work, Flow | None]] = []
        for name, start_ps, end_ps, stats in _kept(plane, line, record):
            if name.startswith("end: "):
                flow = _flow(stats, "_ct", "_c")
                if flow is not None:
                    ends[flow] = start_ps
            elif "hlo_op" in stats:
                mine.append((_work(line, name, start_ps, end_ps, stats), _flow(stats, "_pt", "_p")))
            elif name == "Rendezvous":
                waits.append((str(stats.get("name", name)), start_ps, end_ps))
            else:
                _host_event(name, start_ps, end_ps, stats, record)
        record.waits.extend(_placed(waits, [work for work, _ in mine]))
        thunks.extend(mine)
    record.work.extend(_completed(thunks, ends))


def _kept(
    plane: Plane, line: Line, record: Record
) -> Iterable[tuple[str, int, int, dict[str, StatValue]]]:
    """Events whose stats are worth decoding: noise is counted by kind and left out."""
    for metadata_id, start_ps, duration_ps, spans in events(plane, line, record.damage):
        record.events += 1
        name = plane.event_names.get(metadata_id, "")
        if name.startswith(_NOISE):
            record.dropped["thread pool bookkeeping"] += 1
        elif name.startswith("$"):
            record.dropped["Python calls"] += 1
        elif not is_sound(start_ps, start_ps + duration_ps):
            record.dropped["impossible time stamp"] += 1
        else:
            if name.startswith("end: "):
                record.dropped["ends of operations"] += 1
            yield name, start_ps, start_ps + duration_ps, stat_values(plane, spans, record.damage)


def _work(line: Line, name: str, start_ps: int, end_ps: int, stats: dict[str, StatValue]) -> Work:
    return Work(
        device=int_stat(stats, "device_ordinal", 0),
        line=line.name,
        name=name,
        module=int_stat(stats, "program_id", -1),
        op=str(stats["hlo_op"]),
        run_id=int_stat(stats, "run_id", -1),
        start_ps=start_ps,
        end_ps=end_ps,
    )


def _flow(stats: dict[str, StatValue], kind: str, number: str) -> Flow | None:
    """What pairs an op with its end; None where a stat is absent."""
    return (stats[kind], stats[number]) if kind in stats and number in stats else None


def _completed(thunks: list[tuple[Work, Flow | None]], ends: dict[Flow, int]) -> Iterable[Work]:
    for work, flow in thunks:
        done_ps = ends.get(flow, work.end_ps) if flow else work.end_ps
        yield work._replace(end_ps=max(work.end_ps, done_ps))


def _placed(waits: list[tuple[str, int, int]], work: list[Work]) -> Iterable[Wait]:
    """Give each wait the device and op of the work that encloses it on its thread."""
    work.sort(key=lambda item: item.start_ps)
    starts = [item.start_ps for item in work]
    for name, start_ps, end_ps in waits:
        at = bisect_right(starts, start_ps) - 1
        if at >= 0 and work[at].end_ps >= end_ps:
            around = work[at]
            yield Wait(
                around.device, name, around.op, around.module, around.run_id, start_ps, end_ps
            )


def _host_event(
    name: str, start_ps: int, end_ps: int, stats: dict[str, StatValue], record: Record
) -> None:
    if "step_num" in stats:
        record.markers.append(Marker(name, int_stat(stats, "step_num", -1), start_ps, end_ps))
    elif "::Execute" in name and "run_id" in stats:
        record.launches.append(Launch(int_stat(stats, "run_id", -1), start_ps))
    else:
        if any(part in name for part in _COMPILES):
            record.compiles_ps.append(end_ps)
        record.dropped["other host events"] += 1
