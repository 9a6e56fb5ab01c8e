"""Programs of work by the name that its events tell, where their ids are of another compilation.

A program that comes from JAX's persistent compilation cache is in the profile under a new id, while
the events of XLA:CPU carry the id of its first compilation. That id may be of no program, or by
chance of another. So a program is used only where its name is the one that the event tells. Of
those of that name the one that has all ops of the events is theirs, if no other has. An id whose
program has another name proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.planes.record import PROGRAM_NAME, NamedPrograms, Record
from moeprof.ingest.xspace.space import Int64s


class _Told(NamedTuple):
    """What events tell of their program: its id, and the label of its name."""

    module: int
    name: int


def join_by_name(record: Record, programs: Mapping[int, Program]) -> None:
    """Give the work of `record` ids of `programs` that have the names which its events tell.

    Work whose program is not known keeps its id, or gets one of no program where its own is of
    another. The column `PROGRAM_NAME` is dropped.
    """
    if not any(PROGRAM_NAME in part for part in record.work):
        return
    events = _events_by_told(record.work)
    texts = record.labels.texts
    named = {told: count for told, count in events.items() if told.name and told.module != -1}
    ids, unknown = _new_ids(record, programs, list(named))
    joined = {told for told in ids if told not in unknown}
    record.named = NamedPrograms(
        events=sum(named.values()),
        by_name=sum(named[told] for told in joined),
        joined=tuple(dict.fromkeys(texts[told.name] for told in joined)),
        unknown=tuple(unknown.values()),
    )
    for frames in (record.work, record.waits):
        frames[:] = [_renamed(part, ids) for part in frames]


def _events_by_told(work: Sequence[Table]) -> dict[_Told, int]:
    """How many events tell each id and name, of work that tells names."""
    found: dict[_Told, int] = defaultdict(int)
    for part in filter(_tells_names, work):
        told, place = _told(part)
        for pair, count in zip(told, np.bincount(place, minlength=len(told)).tolist(), strict=True):
            found[pair] += count
    return found


def _tells_names(part: Table) -> bool:
    return bool(part[PROGRAM_NAME].any())


def _told(part: Table) -> tuple[list[_Told], Int64s]:
    """What events tell, each once, and its place for each event."""
    found = grouped(part, "module", PROGRAM_NAME, is_sorted=False)
    told = part.select("module", PROGRAM_NAME)[found.first]
    return [_Told(*row) for row in told.rows()], found.of


def _new_ids(
    record: Record, programs: Mapping[int, Program], named: Sequence[_Told]
) -> tuple[dict[_Told, int], dict[_Told, str]]:
    """The id of each program that the events' own does not tell, and why others are not known."""
    texts = record.labels.texts
    by_name: dict[str, list[int]] = defaultdict(list)
    for module, program in programs.items():
        by_name[program.name].append(module)
    is_there = {told: told.module in by_name[texts[told.name]] for told in named}
    are_shifted = not all(told for told in is_there.values())
    fresh = _fresh_ids(record, programs)
    ids: dict[_Told, int] = {}
    unknown: dict[_Told, str] = {}
    for told in named:
        name = texts[told.name]
        candidates = by_name[name]
        if is_there[told] and (len(candidates) == 1 or not are_shifted):
            continue  # the id and the name are of one program
        ops = _ops_of(record, told)
        whole = [module for module in candidates if _has_all(programs[module], ops)]
        if len(whole) == 1:
            if whole[0] != told.module:
                ids[told] = whole[0]
            continue
        if told.module in programs:
            ids[told] = next(fresh)
            unknown[told] = _why(name, told.module, programs, candidates, whole)
        elif candidates:
            unknown[told] = _why(name, told.module, programs, candidates, whole)
    return ids, unknown


def _why(
    name: str,
    module: int,
    programs: Mapping[int, Program],
    candidates: Sequence[int],
    whole: Sequence[int],
) -> str:
    other = programs[module].name if module in programs else ""
    is_of = f"id {module}, which is {other}'s" if other not in ("", name) else f"id {module}"
    if not candidates:
        return f"{name} ({is_of}): no program of that name in the profile"
    having = f"{len(whole)} of them have" if whole else "none of them has"
    return f"{name} ({is_of}): {len(candidates)} program(s) of that name, {having} all its ops"


def _ops_of(record: Record, told: _Told) -> set[str]:
    """Names of the ops of the events that tell a program so."""
    texts = record.labels.texts
    found: set[str] = set()
    for part in record.work:
        is_its = (part["module"] == told.module) & (part[PROGRAM_NAME] == told.name)
        found |= {texts[code] for code in np.unique(part["op"][is_its]).tolist()}
    return found - {""}


def _has_all(program: Program, ops: set[str]) -> bool:
    return ops <= {instruction.name for instruction in program.module.instructions}


def _fresh_ids(record: Record, programs: Mapping[int, Program]) -> Iterator[int]:
    """Ids of no program and no work: negative ones, which no runtime counts."""
    taken = set(programs)
    for part in record.work:
        taken |= set(np.unique(part["module"]).tolist())
    fresh = -2
    while True:
        if fresh not in taken:
            yield fresh
        fresh -= 1


def _renamed(part: Table, ids: Mapping[_Told, int]) -> Table:
    if PROGRAM_NAME not in part:
        return part
    if ids and _tells_names(part):
        told, place = _told(part)
        new = np.array([ids.get(pair, pair.module) for pair in told], np.int64)
        part = part.assign(module=new[place])
    return part.without(PROGRAM_NAME)
