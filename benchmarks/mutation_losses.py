"""Kinds of damage: something of the record is lost or false."""

from __future__ import annotations

import random
import re

from mutation_kinds import (
    MS_PS,
    Space,
    device_planes,
    drop_stat,
    end_ps,
    host_plane,
    keep,
    kind,
    largest,
    names_of,
    streams,
    worked,
)

_LAUNCH = re.compile(r"Launch|Memcpy|Memset")


@kind(loses=True)
def _third_of_kernels_lost(space: Space, rng: random.Random) -> None:
    for line in streams(space):
        keep(line, lambda _: rng.random() > 1 / 3)


@kind(loses=True)
def _few_kernels_lost(space: Space, rng: random.Random) -> None:
    for line in streams(space):
        keep(line, lambda _: rng.random() > 0.05)


@kind(loses=True)
def _third_of_one_devices_kernels_lost(space: Space, rng: random.Random) -> None:
    for line in rng.choice(worked(space)).lines:
        keep(line, lambda _: rng.random() > 1 / 3)


@kind(loses=True)
def _one_device_lost(space: Space, rng: random.Random) -> None:
    devices = device_planes(space)
    if len(devices) > 1:
        space.planes.remove(rng.choice(devices))


@kind(loses=True)
def _one_device_empty(space: Space, rng: random.Random) -> None:
    devices = device_planes(space)
    if len(devices) > 1:
        del rng.choice(devices).lines[:]


@kind(loses=True)
def _last_part_of_device_work_lost(space: Space, rng: random.Random) -> None:
    lines = streams(space)
    until = max(map(end_ps, lines)) * rng.uniform(0.5, 0.8)
    for line in lines:
        keep(line, lambda event: event.offset_ps < until)


@kind(loses=True)
def _last_part_of_one_device_lost(space: Space, rng: random.Random) -> None:
    plane = rng.choice(worked(space))
    until = max(map(end_ps, plane.lines), default=0) * rng.uniform(0.5, 0.8)
    for line in plane.lines:
        keep(line, lambda event: event.offset_ps < until)


@kind(loses=True)
def _first_part_of_device_work_lost(space: Space, rng: random.Random) -> None:
    lines = streams(space)
    first, last = min(line.events[0].offset_ps for line in lines), max(map(end_ps, lines))
    since = first + (last - first) * rng.uniform(0.2, 0.5)
    for line in lines:
        keep(line, lambda event: event.offset_ps >= since)


@kind(loses=True)
def _gap_in_device_work(space: Space, rng: random.Random) -> None:
    """A buffer of the profiler was overwritten: a stretch of time is missing."""
    lines = streams(space)
    first, last = min(line.events[0].offset_ps for line in lines), max(map(end_ps, lines))
    begin = first + (last - first) * rng.uniform(0.2, 0.6)
    end = begin + (last - first) * 0.2
    for line in lines:
        keep(line, lambda event: not begin <= event.offset_ps < end)


@kind(loses=True)
def _kernels_of_one_name_lost(space: Space, rng: random.Random) -> None:
    line = largest(space)
    plane = next(p for p in worked(space) if any(own == line for own in p.lines))
    totals: dict[int, int] = {}
    for event in line.events:
        totals[event.metadata_id] = totals.get(event.metadata_id, 0) + event.duration_ps
    name = max(totals, key=lambda key: totals[key])
    for each in plane.lines:
        keep(each, lambda event: event.metadata_id != name)


@kind(loses=True)
def _launches_lost(space: Space, rng: random.Random) -> None:
    host = host_plane(space)
    if host is None or not device_planes(space):
        return
    calls = names_of(host, _LAUNCH.search)
    for line in host.lines:
        keep(line, lambda event: event.metadata_id not in calls)


@kind(loses=True)
def _half_of_launches_lost(space: Space, rng: random.Random) -> None:
    host = host_plane(space)
    if host is None or not device_planes(space):
        return
    calls = names_of(host, _LAUNCH.search)
    for line in host.lines:
        keep(line, lambda event: event.metadata_id not in calls or rng.random() < 0.5)


@kind(loses=True, invisible="a script without annotations, and no run record, leaves the same")
def _annotations_lost(space: Space, rng: random.Random) -> None:
    host = host_plane(space)
    codes = {k for k, found in host.stat_metadata.items() if found.name == "step_num"}
    for line in host.lines:
        keep(line, lambda event: not any(stat.metadata_id in codes for stat in event.stats))


@kind(loses=True)
def _one_annotation_lost(space: Space, rng: random.Random) -> None:
    host = host_plane(space)
    codes = {k for k, found in host.stat_metadata.items() if found.name == "step_num"}
    for line in host.lines:
        steps = [e for e in line.events if any(s.metadata_id in codes for s in e.stats)]
        if steps:
            line.events.remove(rng.choice(steps))


@kind(loses=True)
def _host_plane_lost(space: Space, rng: random.Random) -> None:
    host = host_plane(space)
    if host is not None:
        space.planes.remove(host)


@kind(loses=True, invisible="which program runs ahead of a step, its call alone tells")
def _executes_lost(space: Space, rng: random.Random) -> None:
    host = host_plane(space)
    calls = names_of(host, lambda name: "Execute" in name) if host is not None else set()
    for line in host.lines if host is not None else ():
        keep(line, lambda event: event.metadata_id not in calls)


@kind(loses=True)
def _programs_lost(space: Space, rng: random.Random) -> None:
    for plane in [plane for plane in space.planes if plane.name == "/host:metadata"]:
        space.planes.remove(plane)


@kind(loses=True)
def _programs_exchanged(space: Space, rng: random.Random) -> None:
    """The programs stand under each other's ids."""
    for plane in [plane for plane in space.planes if plane.name == "/host:metadata"]:
        items = list(plane.event_metadata.values())
        if len(items) < 2:
            continue
        stats = [[stat.SerializeToString() for stat in item.stats] for item in items]
        for item, theirs in zip(items, [*stats[1:], stats[0]], strict=True):
            kind = type(item.stats[0])
            del item.stats[:]
            item.stats.extend([kind.FromString(data) for data in theirs])


@kind(loses=True)
def _ops_lost(space: Space, rng: random.Random) -> None:
    for plane in device_planes(space):
        drop_stat(plane, "hlo_op")


@kind(loses=True)
def _program_ids_lost(space: Space, rng: random.Random) -> None:
    for plane in worked(space):
        drop_stat(plane, "program_id")


@kind(loses=True)
def _correlation_ids_lost(space: Space, rng: random.Random) -> None:
    for plane in space.planes:
        drop_stat(plane, "correlation_id")


@kind(loses=True)
def _run_ids_lost(space: Space, rng: random.Random) -> None:
    for plane in space.planes:
        drop_stat(plane, "run_id", "_c", "_p")


@kind(loses=True)
def _file_cut(space: Space, rng: random.Random) -> bytes:
    data = space.SerializeToString()
    return data[: int(len(data) * rng.uniform(0.3, 0.95))]


@kind(loses=True)
def _bytes_overwritten(space: Space, rng: random.Random) -> bytes:
    data = bytearray(space.SerializeToString())
    at = rng.randrange(len(data) // 10, len(data) - 300)
    data[at : at + 200] = rng.randbytes(200)
    return bytes(data)


@kind(loses=True)
def _last_kernel_never_ends(space: Space, rng: random.Random) -> None:
    line = max(streams(space), key=end_ps)
    last = max(line.events, key=lambda event: event.offset_ps)
    last.duration_ps = rng.randrange(300, 900) * MS_PS


@kind(loses=True)
def _some_kernels_last_far_too_long(space: Space, rng: random.Random) -> None:
    if device_planes(space):
        _lengthen(space, rng)


@kind(loses=True, invisible="a thread that had to wait for a core leaves the same")
def _some_cpu_ops_last_far_too_long(space: Space, rng: random.Random) -> None:
    if not device_planes(space):
        _lengthen(space, rng)


def _lengthen(space: Space, rng: random.Random) -> None:
    events = list(largest(space).events)
    for event in rng.sample(events, 3):
        event.duration_ps += rng.randrange(50, 200) * MS_PS


@kind(loses=True)
def _every_event_twice(space: Space, rng: random.Random) -> None:
    for line in streams(space):
        line.events.extend(list(line.events))


@kind(loses=True)
def _streams_copied(space: Space, rng: random.Random) -> None:
    """A derived line that repeats a stream under a name that looks like one."""
    for plane in device_planes(space):
        for line in list(plane.lines):
            copy = plane.lines.add()
            copy.CopyFrom(line)
            copy.id, copy.name = line.id + 7000, f"Stream #{line.id + 7000}(Copy of it)"


@kind(loses=True)
def _device_clock_early(space: Space, rng: random.Random) -> None:
    """The devices' stamps lie before those of the host that launched the work."""
    less = rng.randrange(2, 8) * 10**6
    for plane in device_planes(space):
        for line in plane.lines:
            line.timestamp_ns = max(line.timestamp_ns - less, 1)


@kind(loses=True)
def _one_device_clock_early(space: Space, rng: random.Random) -> None:
    less = rng.randrange(2, 8) * 10**6
    for plane in device_planes(space)[:1]:
        for line in plane.lines:
            line.timestamp_ns = max(line.timestamp_ns - less, 1)


@kind(loses=True)
def _some_stamps_zero(space: Space, rng: random.Random) -> None:
    line = largest(space)
    for event in rng.sample(list(line.events), min(20, len(line.events))):
        event.offset_ps = -line.timestamp_ns * 1000


@kind(loses=True)
def _some_stamps_far_away(space: Space, rng: random.Random) -> None:
    line = largest(space)
    for event in rng.sample(list(line.events), min(20, len(line.events))):
        event.offset_ps += 3600 * 1000 * MS_PS


@kind(loses=True, invisible="every stamp and length is scaled alike: the file is consistent")
def _all_times_longer(space: Space, rng: random.Random) -> None:
    for line in (line for plane in space.planes for line in plane.lines):
        for event in line.events:
            event.offset_ps = int(event.offset_ps * 1.2)
            event.duration_ps = int(event.duration_ps * 1.2)


@kind(loses=True, invisible="each device's own record is consistent, and devices may differ")
def _one_device_faster(space: Space, rng: random.Random) -> None:
    for plane in device_planes(space)[:1]:
        for event in (event for line in plane.lines for event in line.events):
            event.duration_ps = event.duration_ps * 2 // 3


@kind(loses=True, invisible="kernels' names are free text, and any op may run any kernel")
def _ops_exchanged(space: Space, rng: random.Random) -> None:
    """Each kernel carries the op of another one."""
    for plane in device_planes(space):
        codes = {k for k, found in plane.stat_metadata.items() if found.name == "hlo_op"}
        stats = [
            stat
            for line in plane.lines
            for event in line.events
            for stat in event.stats
            if stat.metadata_id in codes
        ]
        values = [stat.ref_value for stat in stats]
        rng.shuffle(values)
        for stat, value in zip(stats, values, strict=True):
            stat.ref_value = value


@kind(loses=True)
def _one_device_clock_late(space: Space, rng: random.Random) -> None:
    more = rng.choice((1, 5, 40)) * 10**6
    for plane in device_planes(space)[-1:]:
        for line in plane.lines:
            line.timestamp_ns += more


@kind(loses=True)
def _all_devices_an_hour_late(space: Space, rng: random.Random) -> None:
    for plane in device_planes(space):
        for line in plane.lines:
            line.timestamp_ns += 3600 * 1000 * MS_PS // 1000
