"""What each process of a trace is, and which host's launched the work of which device's.

JAX and XProf name them ``/device:GPU:0`` and ``/host:CPU``, behind the name of the host where
several are in one file. PyTorch's profiler numbers them; there the category of the events tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moeprof.ingest.chrome_json.gathered import DEVICES, NONE, Gathered
from moeprof.ingest.planes.device_planes import gpu_ordinal, tpu_ordinal
from moeprof.ingest.planes.record import distinct
from moeprof.ingest.xspace.space import Int64s


def graph_ids(gathered: Gathered, name: str) -> Int64s:
    """A column of a GPU's graphs; PyTorch writes 0 for what is in none."""
    ids = gathered.column(name)
    codes = [gathered.labels.code(category) for category in ON_DEVICE]
    is_none = (ids == 0) & np.isin(gathered.column("category"), codes)
    return np.where(is_none, NONE, ids)


Role = Literal["device", "host", ""]

_HOST = "/host:CPU"
_BARE = re.compile(r"/(device|host):")
_RANK = re.compile(r"(?<![A-Za-z])rank[\s:=_#-]*(\d{1,6})(?!\d)", re.IGNORECASE)
_BRACKET = re.compile(r"\s*(\[[^\]]*\])")
_COUNTED = re.compile(r"(.*?)(-?\d{1,18})", re.DOTALL)
_BESIDE = ("/host:", "/device:CUSTOM")
_SPANS = ("Spans", "Traces")  # what PyTorch's profiler says of itself
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Process:
    """A process as the trace numbers and names it.

    ``place`` is its place in the order of naming. ``name`` lacks what stands before ``/device:`` or
    ``/host:``, which is ``prefix``. ``head`` is what its number begins with where that is a text
    (``[rank1]``), ``number`` the whole number behind it, None for none. ``device`` tells the
    devices of one process apart; ``rank`` is -1 where neither the name, the number nor the events
    give one. ``is_known`` says whether the format or the profiler explains what it is.
    """

    id: str
    place: int
    name: str
    prefix: str
    head: str
    number: int | None
    rank: int
    role: Role
    device: str
    is_known: bool


def processes_of(gathered: Gathered) -> list[Process]:
    """All processes that have a name or events, in order of their naming."""
    texts, code = gathered.labels.texts, gathered.labels.code
    process, category = gathered.column("process"), gathered.column("category")
    used, at = distinct(process)
    is_work = np.isin(category, [code(name) for name in ON_DEVICE])
    # JAX gives its events no category: a call without one is of a process that is known by its name
    is_call = (gathered.column("correlation") != NONE) & (category != 0)
    is_call |= category == code("user_annotation")
    is_op = gathered.column("op") != 0
    works, calls, has_ops = (
        np.bincount(at, flags, len(used)) > 0 for flags in (is_work, is_call, is_op)
    )
    ordinal, ranks = gathered.column("device"), _ranks(gathered.column("rank"), at, len(used))
    is_nameless = not any(_named_role(bare(name)[1])[0] for name in gathered.names.values())
    found: list[Process] = []
    numbers = {texts[label]: place for place, label in enumerate(used.tolist())}
    for number in dict.fromkeys([*gathered.names, *numbers]):
        full, place = gathered.names.get(number, ""), numbers.get(number, -1)
        prefix, name = bare(full)
        role, device = _named_role(name)
        told = _rank_in(full, number)
        if place >= 0:
            told = int(ranks[place]) if told < 0 else told
            if not role and works[place]:
                role = "device"
                mine = is_work & (at == place)
                device = ",".join(map(str, np.unique(ordinal[mine]).tolist()))
            elif not role and (
                (calls[place] and not name.startswith(("/device:", "/host:")))
                or (has_ops[place] and not name and is_nameless)
            ):
                role = "host"
        head, tail = _numbered(number)
        is_known = bool(role or number in gathered.tags) or _is_usual(name, number) or place < 0
        found.append(
            Process(number, len(found), name, prefix, head, tail, told, role, device, is_known)
        )
    return found


def _is_usual(name: str, number: str) -> bool:
    """Whether profilers add a process of that name or number beside devices and host."""
    return name.startswith(_BESIDE) or number.endswith(_SPANS) or not (name or number)


def bare(name: str) -> tuple[str, str]:
    """What stands before ``/device:`` or ``/host:``, and the rest; a name without has no prefix."""
    found = _BARE.search(name)
    if found is None:
        return "", name
    return name[: found.start()].strip(" :|/-"), name[found.start() :]


def _named_role(name: str) -> tuple[Role, str]:
    if gpu_ordinal(name) is not None or tpu_ordinal(name) is not None:
        return "device", name
    return ("host", "") if name.startswith(_HOST) else ("", "")


def _rank_in(name: str, number: str) -> int:
    told = {int(rank) for text in (number, name) for rank in _RANK.findall(text)}
    return told.pop() if len(told) == 1 else -1


def _ranks(told: Int64s, at: Int64s, count: int) -> Int64s:
    """The rank that all events of a process name, else -1."""
    low, high = np.full(count, 2**62, np.int64), np.full(count, -(2**62), np.int64)
    np.minimum.at(low, at, told)
    np.maximum.at(high, at, told)
    return np.where((low == high) & (low >= 0) & (low < DEVICES), low, -1)


def _numbered(number: str) -> tuple[str, int | None]:
    """What a process's number begins with where it is no plain one, and its whole number."""
    bracket = _BRACKET.match(number)
    head = bracket.group(1) if bracket else ""
    rest = number[bracket.end() :] if bracket else number
    found = _COUNTED.fullmatch(rest.strip())
    if found is None:
        return head, None
    return head or found.group(1).strip(" :_/-"), int(found.group(2))


# Which host process launched the work of which device process, where a trace has several of both.
#
# Ids of launches tell it where no two processes used the same ones. Else the numbers that JAX
# gives processes do (a host is 700 above its first device), else their order, if it leaves one
# way to read it, else the time: no kernel runs before its launch. Where none decides, nothing is
# paired.

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
