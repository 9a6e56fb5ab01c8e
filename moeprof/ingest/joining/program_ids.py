"""Question: are programs of equal id on two hosts the same program, and of different ids another?

Ids are counted by each process. A program that carries the id of another one on an earlier host
gets a fresh id. A program that ran and is on an earlier host under another id gets that one's id,
if its name is unique among those that ran on both: so its ops join across hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.host import Host

Programs = Mapping[int, Program]


class Joined(NamedTuple):
    """Hosts with ids that mean the same program on all of them, and what was changed."""

    hosts: list[Host]
    notes: tuple[str, ...]


def joined_ids(hosts: Sequence[Host]) -> Joined:
    """Give programs of several hosts ids in common. The first host keeps its own."""
    known: dict[int, Program] = {}
    ran: set[int] = set()
    found, notes = [], []
    for host in hosts:
        mine = _that_ran(host)
        ids, apart = _new_ids(host.programs, mine, known, ran)
        if apart:
            notes.append(
                f"{host.name}: {apart} program(s) carry ids of other programs on an earlier host "
                "and were given new ones"
            )
        host = _renamed(host, ids)
        known = {**host.programs, **known}
        ran |= {ids.get(module, module) for module in mine}
        found.append(host)
    return Joined(found, tuple(notes))


def _that_ran(host: Host) -> set[int]:
    return {
        module for part in host.record.work for module in part["module"].unique().tolist()
    } & host.programs.keys()


def _new_ids(
    mine: Programs, ran_here: set[int], known: Programs, ran: set[int]
) -> tuple[dict[int, int], int]:
    """New id of each program that needs one; how many of them had another program's."""
    if not known:
        return {}, 0
    there = _by_unique_name(known, ran)
    here = _by_unique_name(mine, ran_here)
    ids: dict[int, int] = {}
    apart = 0
    fresh = max([*known, *mine, 0]) + 1
    for module, program in mine.items():
        twin = there.get(program.name) if here.get(program.name) == module else None
        if module in known and are_same(program, known[module]):
            continue
        if twin is not None and are_same(program, known[twin]):
            ids[module] = twin
        elif module in known:
            ids[module] = fresh
            fresh, apart = fresh + 1, apart + 1
    return ids, apart


def _by_unique_name(programs: Programs, ran: set[int]) -> dict[str, int]:
    names = Counter(programs[module].name for module in ran)
    return {programs[m].name: m for m in ran if names[programs[m].name] == 1}


def are_same(one: Program, other: Program) -> bool:
    """Whether two programs have one name and equally many instructions."""
    if one.proto == other.proto:
        return True
    return one.name == other.name and one.head.instructions == other.head.instructions


def _renamed(host: Host, ids: Mapping[int, int]) -> Host:
    """`host` with new ids of its programs, in its work and waits too."""
    if not ids:
        return host
    record = replace(host.record)
    record.work = [part.assign(module=part["module"].replace(ids)) for part in record.work]
    record.waits = [part.assign(module=part["module"].replace(ids)) for part in record.waits]
    programs = {ids.get(module, module): program for module, program in host.programs.items()}
    return replace(host, record=record, programs=programs)
