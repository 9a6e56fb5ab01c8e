"""Question: which kernels and copies did a GPU run, for which op, in which execution?

One plane per device, one line per stream. Lines without "Stream" in their name are derived from
the streams and would count the same work twice. A kernel carries no run id: its correlation id
leads to the host call that launched it, and that call lies inside the execution that made it.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from moeprof.ingest.work import Record, Work, is_sound
from moeprof.ingest.xplane import Line, Plane, StatValue, events, int_stat, stat_values

_DEVICE = re.compile(r"^/device:GPU:(\d+)")
_EXECUTE = re.compile(r"^\[\d+\] .*LoadedExecutable::Execute")


def device_ordinal(plane: Plane) -> int | None:
    """The device that a plane belongs to, or None for any other plane."""
    found = _DEVICE.match(plane.name)
    return int(found.group(1)) if found else None


def run_ids(host: Plane) -> dict[tuple[int, int], int]:
    """(device, correlation id) of each launch on the host -> run id of its execution."""
    found: dict[tuple[int, int], int] = {}
    for line in host.lines:
        executes: list[tuple[int, int, int, int]] = []
        calls: list[tuple[int, int]] = []
        for metadata_id, start_ps, duration_ps, spans in events(host, line, []):
            stats = stat_values(host, spans, [])
            if _EXECUTE.match(host.event_names.get(metadata_id, "")) and "_c" in stats:
                run_id = int_stat(stats, "_c", 0)
                device = int_stat(stats, "global_device_id", 0)
                executes.append((start_ps, start_ps + duration_ps, run_id, device))
            elif "correlation_id" in stats:
                calls.append((start_ps, int_stat(stats, "correlation_id", 0)))
        executes.sort()
        starts = [execute[0] for execute in executes]
        for at_ps, correlation in calls:
            index = bisect_right(starts, at_ps) - 1
            if index >= 0 and at_ps <= executes[index][1]:
                found[executes[index][3], correlation] = executes[index][2]
    return found


def read_device_plane(
    plane: Plane, device: int, runs: dict[tuple[int, int], int], record: Record
) -> None:
    """Add the kernels, copies and memsets of a device's streams to `record`."""
    for line in plane.lines:
        is_stream = line.name.startswith("Stream")
        for metadata_id, start_ps, duration_ps, spans in events(plane, line, record.damage):
            record.events += 1
            if not is_stream:
                record.dropped["events derived from the streams"] += 1
            elif not is_sound(start_ps, start_ps + duration_ps):
                record.dropped["impossible time stamp"] += 1
            else:
                stats = stat_values(plane, spans, record.damage)
                name = plane.event_names.get(metadata_id, "")
                record.work.append(
                    _work(line, device, name, (start_ps, start_ps + duration_ps), stats, runs)
                )


def _work(
    line: Line,
    device: int,
    name: str,
    span_ps: tuple[int, int],
    stats: dict[str, StatValue],
    runs: dict[tuple[int, int], int],
) -> Work:
    return Work(
        device=device,
        line=line.name,
        name=name,
        module=int_stat(stats, "program_id", -1),
        op=str(stats.get("hlo_op", "")),
        run_id=runs.get((device, int_stat(stats, "correlation_id", -1)), -1),
        start_ps=span_ps[0],
        end_ps=span_ps[1],
    )
