"""Question: which device is a plane, or a JSON trace's process, of, and what is its global id?

Both have the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from moeprof.ingest.planes.host_plane import HostEvents
from moeprof.ingest.planes.record import Calls, Record
from moeprof.ingest.xspace.space import Int64s
from moeprof.tables.intervals import last_begun

IMPOSSIBLE_DEVICE = "events of an impossible device number"

# An ordinal of ten digits is of no device: the name is damaged.
_GPU = re.compile(r"^/device:GPU:(\d{1,9})(?!\d)")
_TPU = re.compile(r"^/device:TPU:(\d{1,9})(?: SparseCore \d+)?$")
_IMPOSSIBLE = re.compile(r"^/device:[GT]PU:\d{10}")


def gpu_ordinal(name: str) -> int | None:
    """The GPU that a plane of this name belongs to, or None for any other."""
    found = _GPU.match(name)
    return int(found.group(1)) if found else None


def tpu_ordinal(name: str) -> int | None:
    """The TPU that a plane of this name belongs to, or None for any other."""
    found = _TPU.match(name)
    return int(found.group(1)) if found else None


def has_impossible_ordinal(name: str) -> bool:
    """Whether the name is that of a device that cannot be."""
    return _IMPOSSIBLE.match(name) is not None


# Global ids of a process's devices, as the runtime states them where it runs a program.
#
# The runtime numbers the devices of all processes: ``global_device_id`` of each Execute event on
# the host plane. Planes and events of devices bear other numbers, those of the machine or the
# process. A GPU's launches lead from one to the other, as their correlation ids are counted by
# the process; the number in the name of an Execute event does not: it is a place among the
# program's devices.

_MOST_ASKED = 4096
"""Launches of a device that are looked up: they all lead to the same id."""
_AGREE = 0.9
"""Share of them that must; some ids of launches are used twice."""


def device_ids(events: HostEvents, record: Record, devices: Sequence[int]) -> dict[int, int]:
    """Global id by device, of those that are known. `devices` are all that the file has.

    By their launches; where a file has none, as on a CPU, by the number that the work itself bears,
    or by order if the runtime ran programs on as many devices as there are.
    """
    is_execute = events.has("global_device_id") & events.named(lambda name: "::Execute" in name)
    if not is_execute.any():
        return {}
    ids = set(events.number("global_device_id")[is_execute].tolist())
    every = sorted({*devices, *(d for part in record.work for d in _devices(part["device"]))})
    found = _by_launches(events, is_execute, record)
    if found:
        return found | _by_distance(found, every)
    if set(every) <= ids:
        return {device: device for device in every}
    return dict(zip(every, sorted(ids), strict=True)) if len(every) == len(ids) else {}


def _devices(column: object) -> list[int]:
    values: list[int] = np.unique(np.asarray(column)).tolist()
    return values


def _by_launches(events: HostEvents, is_execute: np.ndarray, record: Record) -> dict[int, int]:
    if not len(record.calls.correlation):
        return {}
    places = np.flatnonzero(is_execute)
    places = places[np.lexsort((events.start_ns[places], events.columns.line[places]))]
    found = {}
    for part in record.work:
        for device in _devices(part["device"]):
            asked = part["correlation_id"][part["device"] == device]
            called = record.calls.of(asked[:: -(-len(asked) // _MOST_ASKED)])
            own = _owners(events, places, record.calls, called[called >= 0])
            known, times = np.unique(own, return_counts=True)
            if len(known) and times.max() >= _AGREE * times.sum():
                found[device] = int(known[times.argmax()])
    return found


def _owners(events: HostEvents, places: Int64s, calls: Calls, called: Int64s) -> Int64s:
    """Global ids of the Execute events, at `places` by line and start, that `called` lie in."""
    line, start = calls.line[called], calls.start_ns[called]
    of_places = events.columns.line[places].astype(np.int64)
    at = last_begun(of_places, events.start_ns[places], line, start)
    around = places[np.maximum(at, 0)]
    is_in = (at >= 0) & (events.columns.line[around] == line) & (start <= events.end_ns[around])
    owners: Int64s = events.number("global_device_id")[around[is_in]]
    return owners


def _by_distance(found: Mapping[int, int], devices: Sequence[int]) -> dict[int, int]:
    """Ids of devices without work, where all others are equally far from their numbers."""
    distances = {identity - device for device, identity in found.items()}
    if len(distances) != 1:
        return {}
    distance = distances.pop()
    return {d: d + distance for d in devices if d not in found and d + distance >= 0}
