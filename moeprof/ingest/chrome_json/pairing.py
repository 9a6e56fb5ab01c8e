"""Which host process launched the work of which device process, where a trace has several of both.

Ids of launches tell it where no two processes used the same ones. Else the numbers that JAX gives
processes do (a host is 700 above its first device), else their order, if it leaves one way to
read it, else the time: no kernel runs before its launch. Where none decides, nothing is paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.processes import Process
from moeprof.ingest.planes.device_planes import gpu_ordinal, tpu_ordinal
from moeprof.ingest.xspace.space import Int64s

_HOST_ABOVE = 700  # of the first device; JAX leaves room for 500 devices
_MOST_DEVICES = 500
_MOST = 0.5  # share of a device's launches that must speak for a host
_FEW = 0.05  # share that may speak for another one

Pairs = dict[str, str | None]
"""Device process -> its host process; None where the file holds none of that device."""


def paired(
    gathered: Gathered, devices: Sequence[Process], hosts: Sequence[Process]
) -> Pairs | None:
    """The host process of each device process; None where nothing decides."""
    launches = _Launches(gathered, devices, hosts)
    by_id = _unique(devices, hosts, launches.share)
    if by_id is not None:
        return by_id
    by_number = _by_jax_numbers(devices, hosts)
    if by_number is not None:
        return by_number
    by_order = _by_order(devices, hosts)
    if by_order is not None and all(
        launches.share(device.id, by_order[device.id] or "") < _MOST
        or launches.share_after(device.id, by_order[device.id] or "") >= _MOST
        for device in devices
    ):
        return by_order
    return _unique(devices, hosts, launches.share_after)


def _unique(
    devices: Sequence[Process], hosts: Sequence[Process], share: Callable[[str, str], float]
) -> Pairs | None:
    """The one host that most of each device's launches speak for, if few speak for another."""
    found: Pairs = {}
    for device in devices:
        shares = [share(device.id, host.id) for host in hosts]
        best = max(range(len(hosts)), key=shares.__getitem__)
        others = [value for place, value in enumerate(shares) if place != best]
        if max(others, default=0.0) > _FEW:
            return None
        if shares[best] >= _MOST:
            found[device.id] = hosts[best].id
        elif shares[best] > _FEW:
            return None
        else:
            found[device.id] = None
    return found if _is_possible(found, devices) else None


def _by_jax_numbers(devices: Sequence[Process], hosts: Sequence[Process]) -> Pairs | None:
    found: Pairs = {}
    for device in devices:
        ordinal = gpu_ordinal(device.name)
        ordinal = tpu_ordinal(device.name) if ordinal is None else ordinal
        if device.number is None or ordinal is None:
            return None
        above = {
            host.id: host.number - device.number
            for host in hosts
            if host.number is not None and host.head == device.head
        }
        exact = [host for host, more in above.items() if more == _HOST_ABOVE - ordinal]
        near = [h for h, more in above.items() if 0 <= _HOST_ABOVE - more < _MOST_DEVICES]
        if len(exact) != 1 and len(near) > 1:
            return None
        found[device.id] = exact[0] if len(exact) == 1 else (near[0] if near else None)
    return found if _is_possible(found, devices) else None


def _by_order(devices: Sequence[Process], hosts: Sequence[Process]) -> Pairs | None:
    """By the order of their numbers and of their naming, which must not contradict each other."""
    both = {process.id: process for process in (*devices, *hosts)}
    named = [both[key] for key in dict.fromkeys(p.id for p in _in_file_order(devices, hosts))]
    ways = [_read_in_order(named)]
    if all(process.number is not None for process in named):
        counted = sorted(named, key=lambda process: (process.head, process.number or 0))
        ways.append(_read_in_order(counted))
    known = [way for way in ways if way is not None and _is_possible(way, devices)]
    if not known or any(way != known[0] for way in known):
        return None
    return known[0]


def _in_file_order(devices: Sequence[Process], hosts: Sequence[Process]) -> list[Process]:
    return sorted((*devices, *hosts), key=lambda process: process.place)


def _read_in_order(order: Sequence[Process]) -> Pairs | None:
    """Each host with the devices before it, or each with those behind; None where neither fits."""
    is_host_last = order[0].role == "device"
    sequence = list(order) if is_host_last else list(reversed(order))
    if sequence[0].role != "device" or sequence[-1].role != "host":
        return None
    found: Pairs = {}
    waiting: list[Process] = []
    for process in sequence:
        if process.role == "device":
            waiting.append(process)
        elif not waiting:
            return None
        else:
            found.update((device.id, process.id) for device in waiting)
            waiting = []
    return found


def _is_possible(found: Pairs, devices: Sequence[Process]) -> bool:
    """At least one has a host, and no host two devices of one name."""
    held = [(host, d.device) for d in devices if (host := found[d.id]) is not None]
    return bool(held) and len(set(held)) == len(held)


class _Launches:
    """By ids of launches, how much of a device's work a host may have launched."""

    def __init__(
        self, gathered: Gathered, devices: Sequence[Process], hosts: Sequence[Process]
    ) -> None:
        process, ids = gathered.column("process"), gathered.column("correlation")
        starts = gathered.column("start_ns")
        self._known: dict[str, tuple[Int64s, Int64s]] = {}
        for one in (*devices, *hosts):
            mine = np.flatnonzero((process == gathered.labels.code(one.id)) & (ids != NONE))
            mine = mine[np.lexsort((starts[mine], ids[mine]))]
            self._known[one.id] = ids[mine], starts[mine]

    def share(self, device: str, host: str) -> float:
        """Share of the device's work whose id the host launched."""
        return self._shares(device, host)[0]

    def share_after(self, device: str, host: str) -> float:
        """Share of it that ran after a launch of its id."""
        return self._shares(device, host)[1]

    def _shares(self, device: str, host: str) -> tuple[float, float]:
        ids, ran_ns = self._known[device]
        known, called_ns = self._known.get(host, (ids[:0], ran_ns[:0]))
        if not len(ids) or not len(known):
            return 0.0, 0.0
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        is_known = known[at] == ids
        return float(is_known.mean()), float((is_known & (called_ns[at] <= ran_ns)).mean())
