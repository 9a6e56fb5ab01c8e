"""Question: which programs and steps are the same on two hosts, whatever numbers they bear there?

Ids are counted by each process. A program that carries the id of another one on an earlier host
gets a fresh id. A program that ran and is on an earlier host under another id gets that one's id,
if no other that ran there or here looks like it: so its ops join across hosts.

A host may lack a program that it ran, as where its file is cut. What another host calls by that id
proves nothing: the work gets a fresh id, of no program. A TPU's ids are hashes of the program, and
the same on all hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

from moeprof.columns.grouping import distinct
from moeprof.columns.table import Table
from moeprof.hlo.instruction import Instruction
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.placing.host_tables import HostTables
from moeprof.ingest.placing.step import Step
from moeprof.ingest.planes.record import Host

Programs = Mapping[int, Program]
Looks = tuple[str, int, object]
"""Name, number of instructions and shapes of a program."""
_MOST_COUNTED = 2**31 - 1
"""Ids that XLA counts have 32 bits; a larger one is a hash."""


class Joined(NamedTuple):
    """Hosts with ids that mean the same program on all of them, and what was changed."""

    hosts: list[Host]
    notes: tuple[str, ...]


def joined_ids(hosts: Sequence[Host]) -> Joined:
    """Give programs of several hosts ids in common. The first host keeps its own."""
    if len(hosts) < 2:
        return Joined(list(_with_common_calls(hosts)), ())
    known: dict[int, Program] = {}
    ran: set[int] = set()
    found, notes = [], []
    for host in _with_common_calls(hosts):
        mine = _modules(host) & host.programs.keys()
        ids, apart = _new_ids(host.programs, mine, known, ran)
        if apart:
            notes.append(
                f"{host.name}: {apart} program(s) carry ids of other programs on an earlier host "
                "and were given new ones"
            )
        host = renamed(host, ids)
        known = {**host.programs, **known}
        ran |= {ids.get(module, module) for module in mine}
        found.append(host)
    found, lacking = _with_what_they_lack(found)
    return Joined(found, (*notes, *lacking))


def _with_common_calls(hosts: Sequence[Host]) -> Sequence[Host]:
    """Hosts whose programs of calls hold what any of them called: an op has one name on all."""
    made = [p for host in hosts for p in host.programs.values() if p.is_of_calls]
    if len(made) < 2:
        return hosts
    items: dict[str, Instruction] = {}
    for program in made:
        for item in program.module.instructions:
            known = items.setdefault(item.name, item)
            items[item.name] = known.of_either(item.result)
    numbered = [item._replace(id=n) for n, item in enumerate(items.values())]
    common = Program.known(made[0].name, made[0].module.entry, numbered, is_of_calls=True)
    return [
        replace(
            host,
            programs={m: common if p.is_of_calls else p for m, p in host.programs.items()},
        )
        for host in hosts
    ]


def _modules(host: Host) -> set[int]:
    """Ids of the programs that its work is of."""
    parts = [*host.record.work, *host.record.waits]
    modules = [part["module"] for part in parts]
    return {module for own in modules for module in distinct(own).tolist()} - {-1}


def _with_what_they_lack(hosts: Sequence[Host]) -> tuple[list[Host], list[str]]:
    """Programs of other hosts under hashed ids, fresh ids for work under another's counted id."""
    known = {module: program for host in hosts for module, program in host.programs.items()}
    everywhere = {*known, *(module for host in hosts for module in _modules(host))}
    fresh = count(max([i for i in everywhere if abs(i) <= _MOST_COUNTED], default=0) + 1)
    found, notes = [], []
    for host in hosts:
        lacking = sorted((_modules(host) - host.programs.keys()) & known.keys())
        same = {module: known[module] for module in lacking if abs(module) > _MOST_COUNTED}
        ids = {module: next(fresh) for module in lacking if module not in same}
        if ids:
            notes.append(
                f"{host.name}: its file lacks {len(ids)} program(s) that it ran; those of the same "
                "id on another host prove nothing, so this work is known by its names alone"
            )
        found.append(renamed(replace(host, programs={**host.programs, **same}), ids))
    return found, notes


def _new_ids(
    mine: Programs, ran_here: set[int], known: Programs, ran: set[int]
) -> tuple[dict[int, int], int]:
    """New id of each program that needs one; how many of them had another program's."""
    others = [m for m in mine if m not in known or not are_same(mine[m], known[m])]
    if not known or not others:
        return {}, 0
    there = _by_unique_looks(known, ran)
    here = _by_unique_looks(mine, ran_here)
    looks_here = {module: looks for looks, module in here.items()}
    ids: dict[int, int] = {}
    apart = 0
    fresh = max([*known, *mine, 0]) + 1
    for module in others:
        twin = there.get(looks_here[module]) if module in looks_here else None
        if twin is not None:
            ids[module] = twin
        elif module in known:
            ids[module] = fresh
            fresh, apart = fresh + 1, apart + 1
    return ids, apart


def _by_unique_looks(programs: Programs, ran: set[int]) -> dict[Looks, int]:
    looks = {module: looks_of(programs[module]) for module in ran}
    times = Counter(looks.values())
    return {look: module for module, look in looks.items() if times[look] == 1}


def looks_of(program: Program) -> Looks:
    """What a program has alike on all hosts: its ids and constants may differ.

    The shapes of its parameters and result; of a program that does not state them, of all its
    instructions.
    """
    shapes: object = program.head.shapes
    if not shapes:
        shapes = tuple(item.shape for item in program.module.instructions)
    return program.name, program.head.instructions, shapes


def are_same(one: Program, other: Program) -> bool:
    """Whether two programs have one name, equally many instructions and the same shapes."""
    if one.proto == other.proto:
        return True
    if one.name != other.name or one.head.instructions != other.head.instructions:
        return False
    return looks_of(one) == looks_of(other)


def renamed(host: Host, ids: Mapping[int, int]) -> Host:
    """`host` with new ids of its programs, in its work and waits too."""
    if not ids:
        return host
    record = replace(host.record)
    record.work = [_with_new(part, ids) for part in map(Table.of, record.work)]
    record.waits = [_with_new(part, ids) for part in map(Table.of, record.waits)]
    programs = {ids.get(module, module): program for module, program in host.programs.items()}
    return replace(host, record=record, programs=programs)


def _with_new(part: Table, ids: Mapping[int, int]) -> Table:
    """All at once, as two programs may have changed ids."""
    old, place = np.unique(part["module"], return_inverse=True)
    new = np.array([ids.get(module, module) for module in old.tolist()], np.int64)
    return part.assign(module=new[place])


# Steps of a host that lacks the script's numbers, under the numbers that other hosts have.
#
# A file that is cut may lack the annotations, so that its steps are counted from 0 while those of
# the others bear the script's numbers. Equally many steps of the same program are the same ones,
# in their order; whether that is so, the clocks tell. Other numbers cannot be joined: then the
# host's work is in no step, so that the steps of the others stay whole.


def with_common_numbers(
    tables: Sequence[HostTables], work: Sequence[Table]
) -> tuple[list[HostTables], list[Table]]:
    """`tables` and the work of each host, with steps numbered as on the hosts that know them."""
    numbered = [table for table in tables if table.cut.is_as_in_script]
    if not numbered or len(numbered) == len(tables):
        return list(tables), list(work)
    numbers = numbers_of(numbered)
    pairs = [
        (table, mine) if table.cut.is_as_in_script else numbered_as(table, mine, numbers)
        for table, mine in zip(tables, work, strict=True)
    ]
    return [table for table, _ in pairs], [mine for _, mine in pairs]


def numbers_of(tables: Sequence[HostTables]) -> list[int]:
    """Numbers of the steps with work, on any host."""
    return sorted({step.step for table in tables for step in table.cut.steps if step.runs})


def numbered_as(table: HostTables, work: Table, numbers: Sequence[int]) -> tuple[HostTables, Table]:
    """A host without the script's numbers, and its work, under the numbers of the others' steps."""
    own = [step for step in table.cut.steps if step.runs]
    name = table.host.name
    if len(own) != len(numbers):
        told = (
            f"{name}: its {len(own)} step(s) are not numbered by the script, and the other hosts "
            f"have {len(numbers)}: which are the same is not known, and its work is in no step"
        )
        cut = table.cut._replace(steps=[])
        bare = replace(table, cut=cut, step_of={}, notes=(*table.notes, told))
        return bare, work.assign(step=-1)
    new_of = {step.step: number for step, number in zip(own, numbers, strict=True)}
    steps = [_numbered(step, new_of) for step in own]
    old = work["step"]
    new = np.full(len(work), -1, np.int64)
    for before, after in new_of.items():
        new[old == before] = after
    told = f"{name}: its {len(own)} steps are those of the other hosts in their order"
    step_of = {run: step.step for step in steps for run in step.runs}
    cut = table.cut._replace(steps=steps)
    return replace(table, cut=cut, step_of=step_of, notes=(*table.notes, told)), work.assign(
        step=new
    )


def _numbered(step: Step, new_of: dict[int, int]) -> Step:
    return replace(step, step=new_of[step.step])
