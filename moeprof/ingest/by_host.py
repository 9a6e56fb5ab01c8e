"""Question: how is a run of many hosts read a few at a time, so that memory stays flat?

Each host is read and placed by itself, anywhere, and asked together with some neighbours; what is
kept of it are its steps and what joins hosts: a row per call of a collective, sums for the trust
record. What its work is placed with depends on the others: ids and programs in common, numbers of
steps, which steps are used. So hosts are read under what is known of those read by then, and the
few that were read under what turned out otherwise are read again, until all are read under the
same. See docs/why/many-hosts-one-at-a-time.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moeprof.columns.table import Table
from moeprof.errors import TraceError
from moeprof.hlo.program import Programs
from moeprof.ingest.assemble import JoinedPrograms, Source, facts_together, joined_trace
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.host_frames import HostSides, steps_frame
from moeprof.ingest.joining.numbering import joined_ids, numbers_of, with_common_numbers
from moeprof.ingest.one_host import (
    Ask,
    Batch,
    Held,
    InSteps,
    Own,
    Part,
    Read,
    Runner,
    Shared,
    Task,
    one_by_one,
    without,
)
from moeprof.ingest.placing.host_tables import HostTables
from moeprof.ingest.planes.record import Host
from moeprof.ingest.program_frames import hlo_frame
from moeprof.ingest.run import gathered
from moeprof.ingest.sources.beside import Beside
from moeprof.ingest.sources.locate import Profiles, unpacked_bytes
from moeprof.ingest.sources.processes import processes_of
from moeprof.ingest.sources.routing import Routing
from moeprof.ingest.sources.run_record import counting_of
from moeprof.ingest.sources.sessions import host_name
from moeprof.ingest.sources.window_record import read_host_record
from moeprof.tables.trace import Trace, TraceMeta
from moeprof.tell import Tell, unheard

OF_WORK = ("events", "rendezvous", "launches", "host_events", "allocations")
"""Frames that hold every piece of work; a run that is read host by host has none of them."""


class Joined(NamedTuple):
    """What the hosts that were read are together, and what each should have been read with.

    ``guess`` is what a host is read with of which nothing is known yet.
    """

    source: Source
    routing: Routing
    tables: list[HostTables]
    programs: JoinedPrograms
    shared: Shared
    own: dict[Path, Own]
    guess: Own


class Origin(NamedTuple):
    """Whose a program is, by which id, and what it is."""

    file: Path
    module: int
    held: Held


class Readers(NamedTuple):
    """Who reads hosts, and how many are asked together.

    A round of reading is shared among workers, each of which reads up to so many bytes at a time.
    """

    run: Runner
    workers: int = 1
    most_bytes: int = 2**25


HERE = Readers(one_by_one)
"""This process alone."""

_MOST_ROUNDS = 100


class Reading:
    """A run that is read host by host: what was read by now, and what it says of the rest."""

    def __init__(
        self, found: Profiles, paths: Sequence[Path | str], ask: Ask, *, are_chosen: bool
    ) -> None:
        """Nothing is read yet."""
        self._found, self._paths, self._ask = found, paths, ask
        self._are_chosen = are_chosen
        self._place = {file: place for place, file in enumerate(found.files)}
        self._times = Counter(map(host_name, found.files))
        processes = processes_of(found.run, found.files).of_file
        self._process = dict(zip(found.files, processes, strict=True))
        self._parts: dict[Path, Part] = {}
        self._reads: dict[tuple[Path, ...], Read] = {}
        self._programs: dict[str, Program] = {}
        self._like: dict[str, str] = {}
        self._joined: Joined | None = None

    def read(self, readers: Readers = HERE, tell: Tell = unheard) -> None:
        """Read all hosts, and ask them.

        Raises:
            TraceError: what hosts are read with changes with every host that is read.
        """
        files = self._found.files
        tell(0, len(files))
        for _ in range(_MOST_ROUNDS):
            batches = self._next(readers)
            if not batches:
                break
            for batch, read in readers.run(batches):
                self._keep(batch.files, read)
                tell(len(self._parts), len(files))
            self._joined = self._join()
        else:
            count = sum(len(batch.tasks) for batch in batches)
            raise TraceError(
                f"{self._found.root}: expected hosts whose programs and steps can be joined, found "
                f"{count} that cannot; read them at once by --at-once, or choose by --host"
            )

    def joined(self) -> tuple[Trace, list[Any]] | None:
        """The trace of all hosts without their work, and what they answered, in their order.

        None where fewer than two hosts can be read, so that there is nothing to join.
        """
        if self._joined is None or len(self._kept()) < 2:
            return None
        answers = [read.answer for read in self._reads.values() if read.facts is not None]
        return self._trace(self._joined), answers

    def _next(self, readers: Readers) -> list[Batch]:
        """What is to be read now: as many hosts as were read by now, those read before first.

        What these say may change what the others are read with.
        """
        left = max(len(self._parts), 1)
        chosen: list[Sequence[Path]] = []
        for files in self._reads:
            if left > 0 and any(map(self._is_stale, files)):
                chosen.append(files)
                left -= len(files)
        unread = [file for file in self._found.files if file not in self._parts]
        chosen += _batched(unread[: max(left, 0)], readers)
        shared = self._joined.shared if self._joined else Shared()
        return [Batch(tuple(map(self._task, files)), shared, self._ask) for files in chosen]

    def _task(self, file: Path) -> Task:
        own = self._own(file)
        run = self._found.run_of(file) if own.counts else None
        is_left_out = f"host/p{own.process}.json" in own.left_out
        record = read_host_record(None if is_left_out else run, own.process)
        return Task(file, self._found.urls.get(file, ""), counting_of(run, file), record, own)

    def _own(self, file: Path) -> Own:
        joined = self._joined
        guess = joined.guess if joined is not None else Own()
        own = joined.own.get(file) if joined is not None else None
        name = f"{file} {host_name(file)}" if self._times[host_name(file)] > 1 else ""
        return own or guess._replace(process=self._process[file], name=name)

    def _is_stale(self, file: Path) -> bool:
        part = self._parts.get(file)
        if part is None or part.error is not None:
            return part is None
        shared = self._joined.shared if self._joined else Shared()
        return part.table is None or part.key != (self._own(file), shared.key)

    def _keep(self, files: tuple[Path, ...], read: Read) -> None:
        """What was read of hosts, in place of what was known of them; in the order of files."""
        mine = set(files)
        kept = [pair for pair in self._reads.items() if mine.isdisjoint(pair[0])]
        self._reads = dict(sorted([*kept, (files, read)], key=lambda pair: self._place[pair[0][0]]))
        self._parts.update(zip(files, read.parts, strict=True))
        for part in read.parts:
            for each in part.programs.values():
                if each.content in part.new:
                    self._programs.setdefault(each.content, part.new[each.content])
                    self._like.setdefault(each.look, each.content)

    def _read_as(self, held: Held) -> Held:
        """What a program is read as: one that looks like it, as long as it was not sent."""
        return held if held.content in self._programs else Held(held.look, self._like[held.look])

    def _kept(self) -> list[Path]:
        """The files that could be read, in their order."""
        read = (file for file in self._found.files if file in self._parts)
        return [file for file in read if self._parts[file].host is not None]

    def _join(self) -> Joined | None:
        """What the hosts are together by now; None where none could be read."""
        kept = self._kept()
        if not kept:
            return None
        files = tuple(file for file in self._found.files if file in self._parts)
        answers = [self._hosts_in(file) for file in files]
        read = replace(self._found, files=files)
        source, hosts, routing = gathered(answers, read, self._paths, are_chosen=self._are_chosen)
        joined, notes = joined_ids(hosts)
        source = replace(source, notes=(*source.notes, *notes))
        ids = [_new_ids(*pair) for pair in zip(hosts, joined, strict=True)]
        held = self._held_of(kept, hosts)
        parts = [self._parts[file] for file in kept]
        ran = {new.get(m, m) for part, new in zip(parts, ids, strict=True) for m in part.ran}
        programs = self._programs_of(joined, ran)
        wanted = self._wanted(programs, held)
        raw = [
            replace(part.table, host=host)
            for part, host in zip(parts, joined, strict=True)
            if part.table is not None
        ]
        tables, _ = with_common_numbers(raw, [Table({"step": np.zeros(0, np.int64)})] * len(raw))
        numbered = [table for table in raw if table.cut.is_as_in_script]
        is_mixed = 0 < len(numbered) < len(raw)
        numbers = tuple(numbers_of(numbered)) if is_mixed else ()
        guess = _own_record(Own(numbers=numbers), source.beside)
        own = {
            file: _expected(
                part, before, host, new, _own_record(guess, source.of_host[host.name])
            )._replace(wanted=wanted[file])
            for file, part, before, host, new in zip(kept, parts, hosts, joined, ids, strict=True)
        }
        there = {m: self._read_as(held[id(each)].held) for m, each in programs.every.items()}
        ran_there = tuple((module, there[module]) for module in sorted(programs.ran))
        known = frozenset((module, each.look) for module, each in there.items())
        is_placed = len(tables) == len(parts)
        steps = _used_steps(tables)
        inside = _inside(self._reads.values(), steps or ()) if is_placed else InSteps(True, True)
        shared = Shared(ran_there, steps, bool(numbered), inside, programs.ops, known)
        found = Joined(source, routing, tables, programs, shared, own, guess)
        if is_mixed and is_placed:  # then clocks tell whether steps have numbers in common
            meta = self._trace(found).meta
            shared = shared._replace(is_numbered=meta.are_steps_numbered_by_script)
        return found._replace(shared=shared)

    def _hosts_in(self, file: Path) -> list[Host] | TraceError:
        """A host as it was read, its work no more than the programs that it is of."""
        part = self._parts[file]
        if part.host is None:
            return part.error or TraceError(f"{file}: nothing was read")
        record = replace(
            part.host.record,
            work=[Table({"module": np.array(part.touched, np.int64)})],
            checks=list(part.host.record.checks),
            damage=list(part.host.record.damage),
        )
        programs = {
            module: _copy(self._programs[self._read_as(each).content], record.damage)
            for module, each in part.programs.items()
        }
        return [replace(part.host, name=part.called, record=record, programs=programs)]

    def _held_of(self, files: Sequence[Path], hosts: Sequence[Host]) -> dict[int, Origin]:
        """Whose each program is that hosts were read with, by its identity."""
        return {
            id(program): Origin(file, module, self._parts[file].programs[module])
            for file, host in zip(files, hosts, strict=True)
            for module, program in host.programs.items()
        }

    def _wanted(
        self, programs: JoinedPrograms, held: Mapping[int, Origin]
    ) -> dict[Path, tuple[int, ...]]:
        """Programs of each file that all hosts are placed with, and had to be asked for.

        Only that one looks like them is known, and what looks alike may be another.
        """
        wanted: dict[Path, set[int]] = {}
        for file in self._kept():
            was = self._parts[file].key[0]
            assert isinstance(was, Own)
            wanted[file] = set(was.wanted)
        for program in programs.every.values():
            origin = held[id(program)]
            if origin.held.content not in self._programs:
                wanted[origin.file].add(origin.module)
        return {file: tuple(sorted(modules)) for file, modules in wanted.items()}

    def _programs_of(self, hosts: Sequence[Host], ran: set[int]) -> JoinedPrograms:
        programs: dict[int, Program] = {}
        for host in hosts:
            programs = {**host.programs, **programs}
        shown = ran & programs.keys() or programs.keys()
        known = self._joined.programs if self._joined else None
        mine = {module: programs[module] for module in shown}
        if known is None or known.ran != mine:
            return JoinedPrograms(programs, mine, hlo_frame(mine))
        for module, program in mine.items():  # what was found as their ops were read
            seen = known.ran[module].damage
            program.damage.extend(line for line in seen if line not in program.damage)
        return JoinedPrograms(programs, mine, known.ops)

    def _trace(self, joined: Joined) -> Trace:
        """All hosts' trace, without the frames of their work."""
        facts = [read.facts for read in self._reads.values()]
        hosts = [table.host for table in joined.tables]
        source = joined.source
        sides = HostSides(hosts, source.of_host)
        every = {module: _copy(each, []) for module, each in joined.programs.every.items()}
        return joined_trace(
            source,
            joined.tables,
            facts_together([each for each in facts if each is not None]),
            joined.programs._replace(every=every),  # their totals are read after the laws
            joined.routing,
            **{name: without(name) for name in OF_WORK},
            host_facts=sides.facts,
        ).knowing(Programs(joined.programs.ops))


def _batched(files: Sequence[Path], readers: Readers) -> list[list[Path]]:
    """Neighbours in batches, of which each worker has one where there are as many."""
    most = -(-len(files) // max(readers.workers, 1))
    found: list[list[Path]] = []
    size = 0
    for file in files:
        size += unpacked_bytes(file)
        if not found or len(found[-1]) == most or size > readers.most_bytes:
            found.append([])
            size = unpacked_bytes(file)
        found[-1].append(file)
    return found


def _own_record(own: Own, around: Beside) -> Own:
    """With what may be used of the folder around its profile."""
    return own._replace(counts=not around.is_of_other_run, left_out=tuple(around.left_out))


def _copy(program: Program, damage: list[str]) -> Program:
    """The same program as one host's own, which notes in `damage` what is wrong with it."""
    own = replace(program, damage=damage)
    head = program.head
    if not program.damage:  # else it is noted once more, as this host's
        vars(own)["head"] = head
    return own


def _new_ids(before: Host, after: Host) -> dict[int, int]:
    """The new id of each program of a host that has one, told by what it is: two may share one."""
    at = {id(program): module for module, program in after.programs.items()}
    told = ((old, at.get(id(program), old)) for old, program in before.programs.items())
    works = zip(*(host.record.work[0]["module"].tolist() for host in (before, after)), strict=True)
    return {old: new for old, new in (*told, *works) if old != new}


def _expected(part: Part, before: Host, host: Host, ids: Mapping[int, int], guess: Own) -> Own:
    """What a host should be read with; how it was, where that makes no difference to it."""
    was = part.key[0]
    assert isinstance(was, Own)
    own_numbers = part.table is not None and part.table.cut.is_as_in_script
    mine = {id(program) for program in before.programs.values()}
    added = [pair for pair in host.programs.items() if id(pair[1]) not in mine]
    return guess._replace(
        name="" if host.name == part.called else host.name,
        process=host.process,
        ids=tuple(sorted(ids.items())),
        adds=tuple((module, program.name) for module, program in added),
        numbers=was.numbers if own_numbers else guess.numbers,
    )


def _inside(reads: Collection[Read], steps: Sequence[tuple[int, bool]]) -> InSteps:
    """What of any host is in used steps."""
    used = {step for step, is_used in steps if is_used}
    return InSteps(
        any(used & read.runs_in for read in reads), any(used & read.works_in for read in reads)
    )


def _used_steps(tables: Sequence[HostTables]) -> tuple[tuple[int, bool], ...] | None:
    """The steps of hosts together, and whether they are used, whatever their clocks."""
    names = tuple(table.host.name for table in tables)
    if not names:
        return None
    steps = steps_frame(tables, TraceMeta("", "", (*names, ""), 0, "", 0))
    return tuple(steps.rows("step", "used"))
