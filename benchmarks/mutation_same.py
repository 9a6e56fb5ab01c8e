"""Kinds of change that lose nothing: the same record in another form."""

from __future__ import annotations

import random
import re

from mutation_kinds import (
    MS_PS,
    Plane,
    Space,
    device_planes,
    host_plane,
    keep,
    kind,
    names_of,
    stats_named,
)


@kind(loses=False)
def _planes_reordered(space: Space, rng: random.Random) -> None:
    planes = list(space.planes)
    rng.shuffle(planes)
    copies = [type(plane).FromString(plane.SerializeToString()) for plane in planes]
    del space.planes[:]
    space.planes.extend(copies)


@kind(loses=False)
def _lines_reordered(space: Space, rng: random.Random) -> None:
    for plane in space.planes:
        lines = [type(line).FromString(line.SerializeToString()) for line in plane.lines]
        rng.shuffle(lines)
        del plane.lines[:]
        plane.lines.extend(lines)


@kind(loses=False)
def _events_reordered(space: Space, rng: random.Random) -> None:
    for plane in space.planes:
        for line in plane.lines:
            events = [type(event).FromString(event.SerializeToString()) for event in line.events]
            rng.shuffle(events)
            del line.events[:]
            line.events.extend(events)


@kind(loses=False)
def _names_renumbered(space: Space, rng: random.Random) -> None:
    """Ids of event and stat metadata are counted by each writer."""
    for plane in space.planes:
        for table in ("event_metadata", "stat_metadata"):
            _renumber(plane, table, rng.randrange(1000, 9000))


def _renumber(plane: Plane, table: str, more: int) -> None:
    known = getattr(plane, table)
    entries = {key: value.SerializeToString() for key, value in known.items()}
    for key in entries:
        del known[key]
    for key, data in entries.items():
        known[key + more].ParseFromString(data)
        known[key + more].id = key + more
    if table == "event_metadata":
        for event in (event for line in plane.lines for event in line.events):
            event.metadata_id += more
        return
    owners = [plane, *plane.event_metadata.values(), *plane.stat_metadata.values()]
    owners += [event for line in plane.lines for event in line.events]
    for stat in (stat for owner in owners for stat in getattr(owner, "stats", ())):
        stat.metadata_id += more
        if stat.WhichOneof("value") == "ref_value":
            stat.ref_value += more


@kind(loses=False)
def _all_stamps_shifted(space: Space, rng: random.Random) -> None:
    """The capture began earlier."""
    more = rng.randrange(10**6, 10**9)
    for line in (line for plane in space.planes for line in plane.lines if line.events):
        line.timestamp_ns += more


@kind(loses=False)
def _stamps_in_offsets(space: Space, rng: random.Random) -> None:
    """The start of a line may stand in the line or in its events."""
    for line in (line for plane in space.planes for line in plane.lines):
        for event in line.events:
            event.offset_ps += line.timestamp_ns * 1000
        line.timestamp_ns = 0


@kind(loses=False)
def _host_renamed(space: Space, rng: random.Random) -> None:
    name = f"pod-{rng.randrange(100, 999)}.internal"
    del space.hostnames[:]
    space.hostnames.append(name)


@kind(loses=False)
def _planes_in_pieces(space: Space, rng: random.Random) -> bytes:
    """Messages one behind the other are one message: writers of large files do that."""
    pieces = [type(space)(planes=[plane]).SerializeToString() for plane in space.planes]
    rest = type(space).FromString(space.SerializeToString())
    del rest.planes[:]
    return b"".join([*pieces, rest.SerializeToString()])


@kind(loses=False)
def _unknown_fields(space: Space, rng: random.Random) -> bytes:
    """A newer writer adds fields that older readers do not know."""
    return space.SerializeToString() + bytes([0xFA, 0x3F, 3]) + rng.randbytes(3)


@kind(loses=False)
def _empty_plane_added(space: Space, rng: random.Random) -> None:
    space.planes.add(name=f"/host:tool-{rng.randrange(10)}").lines.add(name="nothing")


@kind(loses=False)
def _correlation_ids_renumbered(space: Space, rng: random.Random) -> None:
    more = rng.randrange(10**5, 10**6)
    for stat in stats_named(space, "correlation_id"):
        field = stat.WhichOneof("value")
        setattr(stat, field, getattr(stat, field) + more)


@kind(loses=False)
def _run_ids_renumbered(space: Space, rng: random.Random) -> None:
    """Flows that join a launch with its executions carry the same number."""
    more = rng.randrange(10**5, 10**6)
    known = {getattr(stat, stat.WhichOneof("value")) for stat in stats_named(space, "run_id")}
    for stat in list(stats_named(space, "run_id", "_p", "_c")):
        field = stat.WhichOneof("value")
        if getattr(stat, field) in known:
            setattr(stat, field, getattr(stat, field) + more)


@kind(loses=False)
def _stream_renumbered(space: Space, rng: random.Random) -> None:
    for plane in device_planes(space):
        for line in plane.lines:
            line.name = re.sub(r"#\d+", lambda m: f"#{int(m.group()[1:]) + 500}", line.name)
            line.id += 500


@kind(loses=False)
def _stream_split(space: Space, rng: random.Random) -> None:
    """Two lines of one name, as a profiler that flushes in parts writes."""
    for plane in device_planes(space):
        for line in [line for line in plane.lines if len(line.events) > 10]:
            half = plane.lines.add(
                name=line.name, id=line.id + 9000, timestamp_ns=line.timestamp_ns
            )
            half.events.extend(list(line.events)[len(line.events) // 2 :])
            del line.events[len(line.events) // 2 :]


@kind(loses=False)
def _user_annotations_added(space: Space, rng: random.Random) -> None:
    """A thread of the user's with annotations of its own that hold no launch."""
    host = host_plane(space)
    if host is None:
        return
    key = max(host.event_metadata, default=0) + 1
    host.event_metadata[key].name, host.event_metadata[key].id = "validate_batch", key
    line = host.lines.add(name="logger", id=77, timestamp_ns=host.lines[0].timestamp_ns)
    for place in range(5):
        line.events.add(metadata_id=key, offset_ps=place * MS_PS, duration_ps=MS_PS // 2)


@kind(loses=False)
def _first_half_of_python_calls_dropped(space: Space, rng: random.Random) -> None:
    """Python calls are in no figure."""
    host = host_plane(space)
    for line in host.lines if host is not None else ():
        calls = names_of(host, lambda name: name.startswith("$"))
        keep(line, lambda event, calls=calls: event.metadata_id not in calls)
