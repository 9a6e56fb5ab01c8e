"""Ranks of the devices that replica groups name.

Groups count the devices of their program by replica · partitions + partition. Which device each of
these is, a program says that JAX compiled; a mesh may name devices in any order. Where it does not,
the numbers are taken for ranks. Where no rank is known, one group of all devices needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moeprof.analyzers.communication.sites import Site
from moeprof.tables.trace import Trace


def with_ranks(trace: Trace, sites: Sequence[Site]) -> list[Site]:
    """`sites` whose groups hold ranks, as `DEVICES` numbers them."""
    ranks = trace.devices["rank"].tolist()
    if ranks and max(ranks) < 0:
        return [replace(site, groups=_of_all(site, ranks)) for site in sites]
    members = _members(trace)
    return [_renamed(site, members.get(site.module, ())) for site in sites]


def ranks_in(trace: Trace, module: int, numbers: Sequence[int]) -> tuple[int, ...]:
    """Ranks of the devices that a program's collectives call by these numbers."""
    members = _members(trace).get(module, ())
    return tuple(members[n] if n < len(members) else n for n in numbers)


def names_of_ranks(trace: Trace) -> dict[int, str]:
    """What each device is called: by its rank, or where that is not known by host and ordinal."""
    columns = (trace.devices[name].tolist() for name in ("rank", "host", "device"))
    return {
        rank: f"rank {rank}" if rank >= 0 else f"{host} device {device}"
        for rank, host, device in zip(*columns, strict=True)
    }


def is_partial(trace: Trace) -> bool:
    """Whether devices of the run are known to be missing: a process, or a rank between others."""
    ranks = set(trace.devices["rank"])
    if trace.meta.missing_processes:
        return True
    if trace.meta.expected_devices:
        return trace.meta.expected_devices > len(ranks)
    return max(ranks, default=0) >= 0 and ranks != set(range(len(ranks)))


def _members(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Ranks by module, in the order of its groups' numbers; of those that say them all."""
    found = {}
    names = ("module", "ranks", "partitions", "replicas")
    columns = (trace.modules[name].tolist() for name in names)
    for module, text, partitions, replicas in zip(*columns, strict=True):
        ranks = tuple(int(rank) for rank in text.split(",") if rank)
        if ranks and (min(partitions, replicas) < 1 or len(ranks) == partitions * replicas):
            found[module] = ranks
    return found


def _renamed(site: Site, members: tuple[int, ...]) -> Site:
    if members == tuple(range(len(members))):
        return site
    groups = tuple(
        tuple(members[number] if number < len(members) else number for number in group)
        for group in site.groups
    )
    return replace(site, groups=groups)


def _of_all(site: Site, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The one group of all devices; other groups as they are, of which no device is."""
    is_all = len(site.groups) == 1 and len(site.groups[0]) == len(ranks)
    return (tuple(ranks),) if is_all else site.groups
