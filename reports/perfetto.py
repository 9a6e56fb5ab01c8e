"""Question: how does a trace look as a trace of Perfetto's?

One process per device, in it one track per stream or thread, and one for the steps of each host.
Work that partly overlaps on one stream lies on tracks of its own, named after the stream. Stamps
are in ns on the common clock, or on each host's own where clocks are not aligned; then the names
of the processes say so.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from moeprof.errors import MoeprofError
from moeprof.tables.clock import is_comparable, to_common
from moeprof.tables.lanes import lanes
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

_SEQUENCE = 1
_FIRST_PROCESS = 1  # a pid of 0 is the swapper's


class Track(NamedTuple):
    """A row of the viewer: its place below a process (`parent` its own uuid for a process)."""

    uuid: int
    parent: int
    name: str
    pid: int = 0


class Slice(NamedTuple):
    """A stretch of a track, in ns, with what a click on it shows."""

    track: int
    start_ns: int
    end_ns: int
    name: str
    kind: str
    shown: dict[str, str | int | float]


def write_perfetto(trace: Trace, file: Path) -> int:
    """Write the device work and steps of a trace; return the number of slices.

    The file appears whole or not at all.

    Raises:
        MoeprofError: the package perfetto is not installed, or the file cannot be written.
    """
    try:
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError as error:
        raise MoeprofError(
            f"Perfetto trace: expected the package perfetto, found none ({error}); "
            "pip install 'moeprof[perfetto]'"
        ) from error
    tracks, slices = layout(trace)
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as made:
            try:
                builder = StreamingTraceProtoBuilder(made)
                for packet in _packets(tracks, slices, builder.create_packet):
                    builder.write_packet(packet)
                made.close()
                os.chmod(made.name, 0o644)
                os.replace(made.name, file)
            except BaseException:
                os.unlink(made.name)
                raise
    except OSError as error:
        raise MoeprofError(f"{file}: cannot be written ({error.strerror})") from error
    return len(slices)


def layout(trace: Trace) -> tuple[list[Track], list[Slice]]:
    """Tracks, a process before those in it, and slices, those of a track in order of start."""
    tracks: list[Track] = []
    process: dict[tuple[str, int], int] = {}
    own = "" if is_comparable(trace.meta) else " (its host's own clock)"
    for host, device, rank, model in _rows(trace.devices, "host", "device", "rank", "model"):
        name = f"rank {rank}: {host} device {device} {model}".strip() + own
        process[host, device] = _add(tracks, name, pid=len(tracks) + _FIRST_PROCESS)
    slices: list[Slice] = []
    events = _on_lanes(trace)
    for key, mine in events.groupby(["host", "device", "line", "lane"], observed=True):
        host, device, line, lane = cast("tuple[str, int, str, int]", key)
        track = _add(tracks, _on_lane(line, lane), process[host, device])
        slices += _work(mine, track)
    steps = trace.steps.sort_values("start_ns", kind="stable")
    if len(steps):
        slices += _steps(steps, tracks, _add(tracks, "steps", pid=len(process) + _FIRST_PROCESS))
    return tracks, slices


def _add(tracks: list[Track], name: str, parent: int = 0, pid: int = 0) -> int:
    """Add a track, or a process where it has a pid; return its uuid."""
    uuid = len(tracks) + 1
    tracks.append(Track(uuid, parent or uuid, name, pid))
    return uuid


def _on_lane(name: str, lane: int) -> str:
    return f"{name} (overlapping, {lane + 1})" if lane else name


def _rows(table: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].tolist() for name in columns), strict=True)


def _steps(steps: pd.DataFrame, tracks: list[Track], process: int) -> list[Slice]:
    """Steps in order of start; of hosts with clocks of their own they may overlap."""
    starts = steps["start_ns"].to_numpy()
    ends = starts + steps["duration_ns"].to_numpy()
    lane = lanes(np.zeros(len(steps), np.int64), starts, ends)
    slices = []
    for number in range(int(lane.max()) + 1):
        track = _add(tracks, _on_lane("measured, and left out", number), process)
        mine = steps[lane == number]
        for row in _rows(mine, "step", "start_ns", "duration_ns", "used", "reason"):
            step, start_ns, duration_ns, used, reason = row
            shown: dict[str, str | int | float] = {"used": int(used), "left out because": reason}
            piece = Slice(track, start_ns, start_ns + duration_ns, f"step {step}", "step", shown)
            slices.append(piece)
    return slices


def _on_lanes(trace: Trace) -> pd.DataFrame:
    """Device work with end and lane, on the clock that is shown, in order of start."""
    events = trace.events
    start_ns = events["start_ns"].to_numpy().copy()
    if is_comparable(trace.meta):
        for host in trace.meta.hosts:
            mine = (events["host"] == host).to_numpy()
            start_ns[mine] = to_common(trace.meta, host, start_ns[mine])
    end_ns = start_ns + events["duration_ns"].to_numpy()
    track = events.groupby(["host", "device", "line"], sort=False, observed=True).ngroup()
    lane = lanes(track.to_numpy().astype(np.int64), start_ns, end_ns)
    placed = events.assign(start_ns=start_ns, end_ns=end_ns, lane=lane)
    return placed.iloc[np.lexsort((-end_ns, start_ns))]


def _work(events: pd.DataFrame, track: int) -> Iterator[Slice]:
    columns = ("start_ns", "end_ns", "name", "op", "kind", "step", "self_ns", "confidence")
    for start_ns, end_ns, name, op, kind, step, self_ns, confidence in _rows(events, *columns):
        shown = {"recorded as": name, "step": step, "self_ns": self_ns, "confidence": confidence}
        yield Slice(track, start_ns, end_ns, op or name, kind, shown)


def _packets(tracks: list[Track], slices: list[Slice], new: Any) -> Iterator[TracePacket]:
    """Descriptions of all tracks, then begins and ends, those of a track in order."""
    for track in tracks:
        packet = new()
        described = packet.track_descriptor
        described.uuid, described.name = track.uuid, track.name
        if track.parent == track.uuid:
            described.process.pid, described.process.process_name = track.pid, track.name
        else:
            described.parent_uuid = track.parent
            described.sibling_merge_behavior = described.SIBLING_MERGE_BEHAVIOR_NONE
        yield packet
    open_ends: list[tuple[int, int]] = []  # (track, end) of what has begun, the innermost last
    for piece in slices:
        while open_ends and (open_ends[-1][0] != piece.track or open_ends[-1][1] <= piece.start_ns):
            yield _end(new(), *open_ends.pop())
        yield _begin(new(), piece)
        open_ends.append((piece.track, piece.end_ns))
    while open_ends:
        yield _end(new(), *open_ends.pop())


def _begin(packet: TracePacket, piece: Slice) -> TracePacket:
    event = packet.track_event
    packet.timestamp, packet.trusted_packet_sequence_id = piece.start_ns, _SEQUENCE
    event.type, event.track_uuid = event.TYPE_SLICE_BEGIN, piece.track
    event.name = piece.name
    event.categories.append(piece.kind)
    for name, value in piece.shown.items():
        note = event.debug_annotations.add()
        note.name = name
        if isinstance(value, str):
            note.string_value = value
        elif isinstance(value, int):
            note.int_value = value
        else:
            note.double_value = value
    return packet


def _end(packet: TracePacket, track: int, end_ns: int) -> TracePacket:
    event = packet.track_event
    packet.timestamp, packet.trusted_packet_sequence_id = end_ns, _SEQUENCE
    event.type, event.track_uuid = event.TYPE_SLICE_END, track
    return packet
