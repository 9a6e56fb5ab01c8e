"""Ranks of the devices of all hosts, and which devices the run had.

The runtime's global ids of devices give them; where they are absent the place of the process in the
run record, or in the file's name as capture writes it (``-p<k>``); of one process alone the order
of its devices. The order of file names means nothing: without any of these no rank is known, and
devices get negative numbers that keep them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from moeprof.columns.table import Table
from moeprof.errors import TraceError
from moeprof.hlo.instruction import parse_groups
from moeprof.ingest.planes.record import Host
from moeprof.ingest.sources.processes import (
    FILE_NAMES,
    MOST_PROCESSES,
    RUN_RECORD,
    Processes,
    Ranked,
)
from moeprof.tables.law import PYTORCH
from moeprof.tables.trace import DEVICES

_CPU_STRIDES = (2**17, 2**11)
"""XLA:CPU's ids are process · stride + place; the stride was larger in older versions."""
_MOST_ID = 2**31
MOST_DEVICES = 2**20
"""Beyond any run there is: groups with a larger member are damaged."""

Place = tuple[str, int]
"""Host and device."""


def ranked(hosts: Sequence[Host], with_work: Table, ops: Table, processes: Processes) -> Ranked:
    """Ranks of all devices.

    `with_work` are host, device and module of work without repetition, `ops` are `HLO_OPS` of the
    programs that ran.
    """
    places = _places(hosts, with_work)
    known = set(places)
    ids = {
        (host.name, device): identity
        for host in hosts
        for device, identity in host.record.ids.items()
        if 0 <= identity < _MOST_ID and (host.name, device) in known
    }
    assigned, needs = _programs(hosts, ops)
    most = max(needs.values(), default=0)
    if conflict := _conflict(hosts, ids, processes):
        return Ranked(_frame(hosts, places, {}), "", conflict, unknown=_hosts_of(places))
    told_by = "global device ids in the profile" if ids else ""
    if not ids:
        # the runtime numbers devices in the order of the processes: places are as good as ids
        ids, told_by = _by_process(hosts, places, processes, most)
    assigned = _believed(assigned, ids, with_work) if ids else {}
    every = {identity for own in assigned.values() for identity in own}
    ids |= _of_those_that_lack(hosts, places, ids, every or set(range(most)), processes)
    rank_of = _ranks_of_ids(every | set(ids.values()), hosts)
    ranks = {place: rank_of[identity] for place, identity in ids.items()}
    named = {m: tuple(rank_of[i] for i in own) for m, own in assigned.items()}
    lacking = [place for place in places if place not in ranks]
    if not lacking:  # else a device without a rank may be any of those that are missing
        named = _by_order(needs, ranks, with_work) | named
    return Ranked(
        devices=_frame(hosts, places, ranks),
        told_by=told_by,
        differs=_differs(hosts, ids, processes),
        unknown=_hosts_of(lacking),
        missing=tuple(sorted({r for own in named.values() for r in own} - set(ranks.values()))),
        expected=len({r for own in named.values() for r in own} | set(ranks.values()))
        if named
        else 0,
        of_module={m: own for m, own in named.items() if m in assigned or own != _first(own)},
        is_assigned=bool(assigned),
    )


def _first(ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(len(ranks)))


def _hosts_of(places: Sequence[Place]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for host, _ in places))


def _by_order(
    needs: Mapping[int, int], ranks: Mapping[Place, int], with_work: Table
) -> dict[int, tuple[int, ...]]:
    """Ranks of the devices of programs that do not name them: those it ran on, in their order.

    Where it ran on fewer than it needs, the first ranks.
    """
    found = {}
    for module, count in needs.items():
        pairs = with_work[with_work["module"] == module].rows("host", "device")
        own = sorted(ranks[pair] for pair in pairs if pair in ranks)
        found[module] = tuple(own) if len(own) == count else tuple(range(count))
    return found


def _places(hosts: Sequence[Host], with_work: Table) -> list[Place]:
    worked: dict[str, set[int]] = {}
    for name, device in with_work.rows("host", "device"):
        worked.setdefault(name, set()).add(device)
    return [
        (host.name, device)
        for host in hosts
        for device in sorted({*host.models, *worked.get(host.name, ())})
    ]


def _programs(
    hosts: Sequence[Host], ops: Table
) -> tuple[dict[int, tuple[int, ...]], dict[int, int]]:
    """Assigned devices of the programs that ran, and how many devices each needs, where told.

    By partitions and replicas, or by the members that groups of its collectives name.
    """
    assigned: dict[int, tuple[int, ...]] = {}
    needs = dict.fromkeys(ops["module"].tolist(), 0)
    named = ops.select("module", "replica_groups")[ops["replica_groups"] != ""]
    for module, text in dict.fromkeys(named.rows()):
        members = [member for own in parse_groups(text) for member in own]
        needs[module] = max(needs[module], max(members, default=-1) + 1)
    seen: set[int] = set()
    for host in hosts:
        for module in (needs.keys() & host.programs.keys()) - seen:
            seen.add(module)
            head = host.programs[module].head
            if head.devices:
                assigned[module] = head.devices
            if head.partitions > 0 and head.replicas > 0:
                needs[module] = max(needs[module], head.partitions * head.replicas)
    return assigned, {m: count for m, count in needs.items() if 0 < count < MOST_DEVICES}


def _conflict(hosts: Sequence[Host], ids: Mapping[Place, int], processes: Processes) -> str:
    """Which statements about devices cannot both be true; empty where none contradict."""
    times = Counter(ids.values())
    twice = [identity for identity, count in times.items() if count > 1]
    if twice:
        first = min(twice)
        at = ", ".join(f"{h} device {d}" for (h, d), i in ids.items() if i == first)
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        return f"global device id {first}{more} is stated for several devices: {at}"
    if processes.told_by == RUN_RECORD and (wrong := _out_of_order(hosts, ids)):
        return f"global device ids contradict the run record: {wrong}"
    return ""


def _differs(hosts: Sequence[Host], ids: Mapping[Place, int], processes: Processes) -> str:
    if not ids or processes.told_by != FILE_NAMES:
        return ""
    wrong = _out_of_order(hosts, ids)
    return (
        f"numbers in the files' names say otherwise and are passed over: {wrong}" if wrong else ""
    )


def _out_of_order(hosts: Sequence[Host], ids: Mapping[Place, int]) -> str:
    """Two hosts whose ids are in another order than their processes. TPUs number by place."""
    known = []
    for host in sorted(hosts, key=lambda h: h.process):
        own = [identity for (name, _), identity in ids.items() if name == host.name]
        if host.process >= 0 and own and host.platform != "tpu":
            known.append((host, min(own)))
    for (one, low), (other, high) in pairwise(known):
        if low >= high:
            return (
                f"process {one.process} ({one.name}) has device {low}, process {other.process} "
                f"({other.name}) has device {high}"
            )
    return ""


def _of_those_that_lack(
    hosts: Sequence[Host],
    places: Sequence[Place],
    ids: Mapping[Place, int],
    every: set[int],
    processes: Processes,
) -> dict[Place, int]:
    """Ids of devices whose host tells none, as where its file is cut, if they can be no others.

    Those that are left over, if all are of one host and as many as it has devices; else by the
    places of the processes, if these give the others their ids too.
    """
    lacking = [place for place in places if place not in ids] if ids else []
    left = sorted(every - set(ids.values()))
    if lacking and len(left) == len(lacking) and len({host for host, _ in lacking}) == 1:
        return dict(zip(lacking, left, strict=True))
    by_process = _regular(hosts, places, processes)
    is_same = all(by_process.get(place) == identity for place, identity in ids.items())
    return {place: by_process[place] for place in lacking} if by_process and is_same else {}


def _believed(
    assigned: Mapping[int, tuple[int, ...]], ids: Mapping[Place, int], with_work: Table
) -> dict[int, tuple[int, ...]]:
    """Assignments without those of programs that ran elsewhere, as a cached program may."""
    ran: dict[int, set[int]] = {}
    for host, device, module in with_work.rows("host", "device", "module"):
        identity = ids.get((host, device))
        if identity is not None:
            ran.setdefault(module, set()).add(identity)
    return {m: own for m, own in assigned.items() if ran.get(m, set()) <= set(own)}


def _ranks_of_ids(ids: set[int], hosts: Sequence[Host]) -> dict[int, int]:
    """Rank of each id: the id itself; of XLA:CPU's, which leave gaps, the place among all."""
    largest = max(ids, default=0)
    is_cpu = all(host.platform in ("cpu", "unknown") for host in hosts)
    if not is_cpu or largest < min(_CPU_STRIDES):
        return {identity: identity for identity in ids}
    stride = next(s for s in _CPU_STRIDES if largest >= s)
    each = max(identity % stride for identity in ids) + 1
    whole = {p * stride + d for p in range(largest // stride + 1) for d in range(each)}
    order = sorted(ids if len(ids) == len(whole) else ids | whole)
    return {identity: rank for rank, identity in enumerate(order)}


def _by_process(
    hosts: Sequence[Host], places: Sequence[Place], processes: Processes, needed: int
) -> tuple[dict[Place, int], str]:
    """Ranks without ids, and what they follow from."""
    regular = _regular(hosts, places, processes)
    if regular:
        return regular, f"process of each file by the {processes.told_by or 'files'}"
    if len(hosts) == 1 and (needed <= len(places) or processes.expected == 1):
        return {place: rank for rank, place in enumerate(places)}, "order of one process's devices"
    return {}, ""


def _regular(
    hosts: Sequence[Host], places: Sequence[Place], processes: Processes
) -> dict[Place, int]:
    """Process · devices of each + place, or in order of the processes where all are there."""
    numbers = [host.process for host in hosts]
    if min(numbers) < 0 or max(numbers) >= MOST_PROCESSES or len(set(numbers)) < len(hosts):
        return {}
    by_host = {host.name: [p for p in places if p[0] == host.name] for host in hosts}
    sizes = {len(own) for own in by_host.values()}
    are_all = sorted(numbers) == list(range(len(hosts))) and processes.expected in (0, len(hosts))
    if len(sizes) > 1 and not are_all:
        return {}
    found: dict[Place, int] = {}
    for host in sorted(hosts, key=lambda host: host.process):
        own = by_host[host.name]
        first = host.process * len(own) if len(sizes) == 1 else len(found)
        found |= {place: first + at for at, place in enumerate(own)}
    return found


def _frame(hosts: Sequence[Host], places: Sequence[Place], ranks: Mapping[Place, int]) -> Table:
    """`DEVICES`, by rank; those without one behind, with numbers of their own that end with -2."""
    models = {host.name: host.models for host in hosts}
    unknown = [place for place in places if place not in ranks]
    numbers = {**ranks, **{place: at - len(unknown) - 1 for at, place in enumerate(unknown)}}
    order = [*sorted(ranks, key=lambda place: ranks[place]), *unknown]
    return DEVICES.table(
        [
            {"host": h, "device": d, "rank": numbers[h, d], "model": models[h].get(d, "")}
            for h, d in order
        ]
    )


def refuse_one_rank_twice(hosts: Sequence[Host]) -> None:
    """Of PyTorch's files of a single rank: two of the same are a copy, or of two runs.

    Raises:
        TraceError: two files are of one rank.
    """
    ranks: dict[int, Host] = {}
    for host in hosts:
        if host.framework == PYTORCH and host.process >= 0:
            other = ranks.setdefault(host.process, host)
            if other is not host:
                raise TraceError(
                    f"{other.name} and {host.name}: expected a file of each rank once, found two "
                    f"of rank {host.process}; give those of one run"
                )
