"""The processes of a run that lie in one trace, each as a trace of its own.

Tools that merge the files of several ranks keep the ids of launches as they were, so that each of
them stands for as many launches as there are ranks. Processes belong together by what stands
before their name or number, or by the rank that their events carry; those that are alike in this by
`processes`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.processes import Process, graph_ids, paired, processes_of
from moeprof.ingest.planes.record import MergedProcesses
from moeprof.ingest.xspace.space import Flags
from moeprof.units import format_count, format_percent

_FEW = 0.01  # share of work whose id of a launch may stand for several
_LISTED = 4
_LIKE_A_DEVICE = re.compile(r"device|[gtnxh]pu\b|gfx\d|stream|accelerator", re.IGNORECASE)
_KEYS: tuple[Callable[[Process], tuple[str | int, ...]], ...] = (
    lambda process: (process.prefix, process.head, process.rank),
    lambda process: (process.prefix, process.rank),
    lambda process: (process.prefix, process.head),
    lambda process: (process.prefix,),
)
"""What processes of one process of the run have in common, the strictest first."""


@dataclass(frozen=True)
class Part:
    """One process of the run: its trace, what it is called ("" as its file), its rank or -1."""

    gathered: Gathered
    name: str
    rank: int
    merged: MergedProcesses


@dataclass(frozen=True)
class _Group:
    """Processes that belong together; ``problem`` says why they may not."""

    processes: tuple[Process, ...]
    mixed: str = ""
    unpaired: str = ""


def parts_of(gathered: Gathered) -> list[Part]:
    """Take a trace apart; one of a single process is given back as it is, with bare names.

    What belongs to none of several is counted in the first one's ``dropped``.
    """
    processes = processes_of(gathered)
    found = [group for mine in _keyed(processes) for group in _split(gathered, mine)]
    groups = [group for group in found if any(p.role == "device" for p in group.processes)]
    idle = [p.id for group in found if group not in groups for p in group.processes]
    if not groups:  # the work of XLA:CPU is on its hosts
        groups, idle = found, []
    strange = _strange(processes)
    merged = MergedProcesses(
        found=max(len(groups), 1),
        mixed="; ".join(filter(None, (*(g.mixed for g in groups), _two_names(gathered)))),
        unpaired=tuple(
            filter(
                None,
                (
                    *(group.unpaired for group in groups),
                    _nameless(groups),
                    _idle(idle),
                    _devices_like(strange),
                ),
            )
        ),
        strange=strange,
    )
    if len(groups) < 2 and not idle:
        return [_whole(gathered, processes, groups, merged)]
    groups.sort(key=_order)
    names = _names(groups)
    ranks = Counter(_rank(group) for group in groups)
    parts = []
    taken = np.zeros(len(gathered.column("process")), bool)
    for group, name in zip(groups, names, strict=True):
        mine = _is_of(gathered, group.processes)
        taken |= mine
        part = gathered.part(mine, {p.id: p.name for p in group.processes})
        rank = _rank(group)
        told = replace(merged, mixed="; ".join(filter(None, (merged.mixed, reused_ids(part)))))
        parts.append(Part(part, name, rank if ranks[rank] == 1 else -1, told))
    first = parts[0].gathered
    first.dropped.update(gathered.dropped)
    first.complete = gathered.complete - sum(part.gathered.complete for part in parts[1:])
    if left := int((~taken).sum()):
        first.dropped["events of processes beside those of the run"] += left
    return parts


def _whole(
    gathered: Gathered,
    processes: Sequence[Process],
    groups: Sequence[_Group],
    merged: MergedProcesses,
) -> Part:
    gathered.names.update({p.id: p.name for p in processes if p.id in gathered.names})
    mixed = "; ".join(filter(None, (merged.mixed, reused_ids(gathered))))
    rank = _rank(groups[0]) if groups else -1
    return Part(gathered, _prefix(groups), rank, replace(merged, mixed=mixed))


def _prefix(groups: Sequence[_Group]) -> str:
    return next((p.prefix for g in groups for p in g.processes if p.prefix), "")


def reused_ids(gathered: Gathered) -> str:
    """What shows that processes of several ranks were given one number; empty where nothing does.

    Within a process the id of a launch stands for one call, and outside of a graph for one kernel.
    """
    processes = processes_of(gathered)
    is_device = _is_of(gathered, [p for p in processes if p.role == "device"])
    is_host = _is_of(gathered, [p for p in processes if p.role == "host"])
    ids, graph = gathered.column("correlation"), graph_ids(gathered, "graph_node")
    called = np.flatnonzero(is_host & ~is_device & (ids != NONE))
    start, end = (gathered.column(name)[called] for name in ("start_ns", "end_ns"))
    order = np.lexsort((start, ids[called]))
    known, start, end = ids[called][order], start[order], end[order]
    is_again = (known[1:] == known[:-1]) & (start[1:] >= end[:-1])
    work = ids[is_device & (ids != NONE) & (graph == NONE)]
    if not is_again.any() or not len(work):
        return ""
    unique, inverse, count = np.unique(work, return_inverse=True, return_counts=True)
    is_reused = np.isin(unique, known[1:][is_again]) & (count > 1)
    reused = int(is_reused[inverse].sum())
    if reused <= _FEW * len(work):
        return ""
    return (
        f"{format_count(reused)} of {format_count(len(work))} pieces of work "
        f"({format_percent(reused / len(work))}) share the id of their launch with another one, "
        "launched at another time: several processes were written under one number"
    )


def _keyed(processes: Sequence[Process]) -> list[list[Process]]:
    """Devices and hosts by what their names and numbers begin with, and by rank.

    What tells no device and host to be of one process, while there are both, counts for nothing.
    """
    taking = [process for process in processes if process.role]
    has_both = len({process.role for process in taking}) > 1
    for key in _KEYS:
        groups: dict[tuple[str | int, ...], list[Process]] = defaultdict(list)
        for process in taking:
            groups[key(process)].append(process)
        if not has_both or any(len({p.role for p in mine}) > 1 for mine in groups.values()):
            return list(groups.values())
    return [taking]


def _split(gathered: Gathered, mine: Sequence[Process]) -> list[_Group]:
    """Processes of one name and rank, apart where they are of several processes all the same."""
    devices = [process for process in mine if process.role == "device"]
    hosts = [process for process in mine if process.role == "host"]
    is_twice = len({device.device for device in devices}) < len(devices)
    if len(hosts) < 2 and not is_twice:
        return [_Group(tuple(mine))]
    if not devices or not hosts:
        return [_Group((process,)) for process in mine]
    pairs = paired(gathered, devices, hosts)
    if pairs is None:
        return _not_paired(devices, hosts)
    groups = []
    for host in hosts:
        groups.append(_Group((*(d for d in devices if pairs[d.id] == host.id), host)))
    lone = [device for device in devices if pairs[device.id] is None]
    told = "no host process launched work of {}: its steps are found from its own work alone"
    return [*groups, *(_Group((d,), unpaired=told.format(_named(d))) for d in lone)]


def _not_paired(devices: Sequence[Process], hosts: Sequence[Process]) -> list[_Group]:
    if len(hosts) > len(devices):
        mixed = (
            f"{len(hosts)} host processes ({_listed(h.id for h in hosts)}) launched work of "
            f"{len(devices)} device process(es) ({_listed(map(_named, devices))}), and neither "
            "numbers, order nor launches tell whose it is"
        )
        return [_Group((*devices, *hosts), mixed=mixed)]
    told = (
        f"which of the host processes {_listed(h.id for h in hosts)} launched work of which of "
        f"{_listed(map(_named, devices))} is told by neither numbers, order nor launches: steps "
        "are found from each device's own work alone"
    )
    groups = [_Group((device,)) for device in devices]
    return [replace(groups[0], unpaired=told), *groups[1:]]


def _strange(processes: Sequence[Process]) -> tuple[str, ...]:
    """Names of processes with events that are neither device nor host nor what profilers add."""
    return tuple(dict.fromkeys(p.name or p.id for p in processes if not p.is_known))


def _devices_like(names: Sequence[str]) -> str:
    """What is left out with processes that are called like devices."""
    found = [f"'{name}'" for name in names if _LIKE_A_DEVICE.search(name)]
    if not found:
        return ""
    return f"events of {_listed(found)}, of no device that moeprof knows, are in no figure"


def _two_names(gathered: Gathered) -> str:
    pairs = [
        f"process {number} is called both '{one}' and '{other}'"
        for number, (one, other) in gathered.renamed.items()
        if "/device:" in one + other
    ]
    return "; ".join(pairs[:_LISTED])


def _nameless(groups: Sequence[_Group]) -> str:
    nameless = [p.id for g in groups for p in g.processes if not p.name and p.role == "host"]
    if len(groups) < 2 or not nameless:
        return ""
    return (
        f"process(es) {_listed(nameless)} have no name: each is taken for a device of its own, and "
        "which host launched their work is not known"
    )


def _idle(hosts: Sequence[str]) -> str:
    if not hosts:
        return ""
    return f"host process(es) {_listed(hosts)} launched no work of a device in the file: left out"


def _names(groups: Sequence[_Group]) -> list[str]:
    """What each is called: by host, by rank, else by its place in the file; "" as the file."""
    if len(groups) == 1:
        return [_prefix(groups)]
    told = [_told_name(group) for group in groups]
    times = Counter(told)
    ranked = [
        f"{name} rank{_rank(group)}".strip() if times[name] > 1 and _rank(group) >= 0 else name
        for name, group in zip(told, groups, strict=True)
    ]
    times = Counter(ranked)
    return [
        name if name and times[name] == 1 else f"{name or 'part'} {place}".strip()
        for place, name in enumerate(ranked)
    ]


def _told_name(group: _Group) -> str:
    process = group.processes[0]
    if process.prefix:
        return process.prefix.strip("[]")
    if process.rank >= 0:
        return f"rank{process.rank}"
    return process.head.strip("[]")


def _rank(group: _Group) -> int:
    ranks = {process.rank for process in group.processes}
    return ranks.pop() if len(ranks) == 1 else -1


def _order(group: _Group) -> tuple[int, int, str, int]:
    """By rank, else by number, else by name."""
    numbers = [p.number for p in group.processes if p.number is not None]
    rank = _rank(group)
    place = min(process.place for process in group.processes)
    return (rank if rank >= 0 else 2**31, min(numbers, default=0), _told_name(group), place)


def _is_of(gathered: Gathered, processes: Sequence[Process]) -> Flags:
    codes = [gathered.labels.code(process.id) for process in processes]
    return np.isin(gathered.column("process"), codes)


def _named(process: Process) -> str:
    return f"'{process.name or process.id}' ({process.id})"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - _LISTED
    return ", ".join(every[:_LISTED]) + (f" and {more} more" if more > 0 else "")
