"""Question: what is kept of one host of many, so that it need not be read again?

Its steps and what joins hosts: a row per call of a collective, sums for the trust record; and the
answer to whatever it was asked, together with its neighbours (`Batch`): what a question costs
whatever its work, they pay once. It is read with what is known of the others (`Own`, `Shared`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moeprof.columns.grouping import distinct
from moeprof.columns.table import Table
from moeprof.errors import NotByHostError, TraceError
from moeprof.hlo.program import Programs
from moeprof.ingest.assemble import WorkFacts, facts_of
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.host_file import read_file
from moeprof.ingest.host_frames import (
    HostSides,
    events_frame,
    executions_frame,
    markers_frame,
    rendezvous_frame,
)
from moeprof.ingest.joining.device_clocks import with_one_device_clock
from moeprof.ingest.joining.numbering import looks_of, numbered_as, renamed
from moeprof.ingest.placing.host_tables import HostTables, host_tables
from moeprof.ingest.placing.self_time import bodies
from moeprof.ingest.planes.record import NO_CALLS, Host, Labels
from moeprof.ingest.program_frames import modules_frame
from moeprof.ingest.sources.run_record import Counting
from moeprof.ingest.sources.store import fetched
from moeprof.ingest.sources.window_record import HostRecord
from moeprof.tables.intervals import work_of
from moeprof.tables.once import Latest, Loader
from moeprof.tables.trace import DEVICES, STEPS, Trace, TraceMeta


class InSteps(NamedTuple):
    """Whether executions, and any work, of a run or of a host are in used steps."""

    runs: bool
    work: bool


Ask = Callable[[Trace, InSteps], Any]
"""What is asked of some hosts, of whose run that is known too; sent to processes by its name."""


class Held(NamedTuple):
    """Digests of a program: of how it looks, alike on all hosts, and of all that it is."""

    look: str
    content: str


class Shared(NamedTuple):
    """What hosts are placed with: the programs that ran, by id, and the steps of the run.

    ``ops`` are of ``programs``; ``steps`` are numbers, and whether they are used, None where no
    host is placed yet. ``inside`` is of all hosts, both True as long as some are not placed.
    ``known`` are ids and looks of programs that need not be sent again.
    """

    programs: tuple[tuple[int, Held], ...] = ()
    steps: tuple[tuple[int, bool], ...] | None = None
    is_numbered: bool = False
    inside: InSteps = InSteps(True, True)
    ops: Table | None = None
    known: frozenset[tuple[int, str]] = frozenset()

    @property
    def key(self) -> tuple[object, ...]:
        """What makes a host's answer another one."""
        return self.programs, self.steps, self.is_numbered, self.inside


class Own(NamedTuple):
    """What is to be known of one host before it is read.

    ``process`` is its place in the run, -1 unknown; ``ids`` are new ids of its programs, ``adds``
    names of others' programs that it ran; ``numbers`` those of its steps where it has none of its
    own. ``wanted`` are those of its programs that stand for all hosts' and were not sent.
    """

    name: str = ""
    process: int = -1
    counts: bool = True
    ids: tuple[tuple[int, int], ...] = ()
    adds: tuple[tuple[int, str], ...] = ()
    numbers: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    wanted: tuple[int, ...] = ()


class Task(NamedTuple):
    """One host to read.

    ``counting`` and ``record`` are what capture wrote down of it. ``url`` is where the file is to
    be had, empty where it lies in its place.
    """

    file: Path
    url: str
    counting: Counting | None
    record: HostRecord
    own: Own


class Batch(NamedTuple):
    """Hosts that are read one after the other and asked together, as one question costs as much.

    They are neighbours in the order of the run's files.
    """

    tasks: tuple[Task, ...]
    shared: Shared
    ask: Ask

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of its hosts."""
        return tuple(task.file for task in self.tasks)

    def singly(self) -> list[Batch]:
        """Each of its hosts by itself."""
        return [self._replace(tasks=(task,)) for task in self.tasks]


@dataclass(frozen=True)
class Part:
    """What is kept of one host; of a file that cannot be read the error alone.

    ``host`` is without its work and programs, of which ``programs`` has what they are by id, and
    ``new`` those that were not known by content. ``touched`` are the programs of its work and
    waits, ``ran`` of its work. ``called`` is what its file alone calls it. ``table`` is None where
    it ran a program that was not known.
    """

    key: tuple[object, ...]
    error: TraceError | None = None
    host: Host | None = None
    called: str = ""
    programs: Mapping[int, Held] = field(default_factory=dict)
    new: Mapping[str, Program] = field(default_factory=dict)
    touched: tuple[int, ...] = ()
    ran: tuple[int, ...] = ()
    table: HostTables | None = None


@dataclass(frozen=True)
class Read:
    """What is kept of the hosts of a batch: each by itself, and what they say together.

    ``runs_in`` and ``works_in`` are steps with executions and with work. ``facts`` are None where
    one of them ran a program that was not known, or none can be read; ``answer`` is None besides
    where no steps are known.
    """

    parts: tuple[Part, ...]
    facts: WorkFacts | None = None
    runs_in: frozenset[int] = frozenset()
    works_in: frozenset[int] = frozenset()
    answer: Any = None


class _Placed(NamedTuple):
    """The work of a host of a batch, placed; the frame is taken out where it is joined."""

    task: Task
    table: HostTables
    work: Table


Runner = Callable[[Sequence[Batch]], Iterable[tuple[Batch, Read]]]
"""Reads hosts, in any order and place, each batch as a whole or in pieces."""


def one_by_one(batches: Sequence[Batch]) -> Iterator[tuple[Batch, Read]]:
    """Read hosts here, one batch after the other."""
    for batch in batches:
        yield batch, read_batch(batch)


def read_batch(batch: Batch) -> Read:
    """Read, place and ask hosts, of files that are fetched and given up where they are remote."""
    with ExitStack() as stack:
        pairs = [_read_host(task, batch.shared, stack) for task in batch.tasks]
        parts = tuple(part for part, _ in pairs)
        placed = [found for _, found in pairs if found is not None]
        if not placed or any(part.table is None and part.error is None for part in parts):
            return Read(parts)
        del pairs
        return replace(_asked(batch, placed), parts=parts)


def _read_host(task: Task, shared: Shared, stack: ExitStack) -> tuple[Part, _Placed | None]:
    """Read one host, and place its work where all programs that it ran are known."""
    key = (task.own, shared.key)
    place = task.file
    try:
        if task.url:
            place = stack.enter_context(fetched(task.url, task.file))
        hosts = read_file(place, task.counting)
    except TraceError as error:
        told = str(error).replace(str(place), task.url) if task.url else str(error)
        return Part(key, TraceError(told)), None
    return _placed(task._replace(file=place), shared, key, hosts[0])


def _placed(
    task: Task, shared: Shared, key: tuple[object, ...], host: Host
) -> tuple[Part, _Placed | None]:
    own, called = task.own, host.name
    host = replace(
        host,
        name=own.name or host.name,
        process=own.process if own.process >= 0 else host.process,
        programs={m: replace(program, damage=[]) for m, program in host.programs.items()},
    )  # what is damaged in a program is noted where programs are joined
    work, waits = (
        [set(distinct(part["module"]).tolist()) for part in parts]
        for parts in (host.record.work, host.record.waits)
    )
    ran, touched = set().union(*work), set().union(*work, *waits)
    held = {module: held_of(program) for module, program in host.programs.items()}
    sent = _to_send(own, shared, held, ran)
    new = {held[module].content: host.programs[module] for module in sent}
    part = Part(
        key, None, _lean(host), called, held, new, tuple(sorted(touched)), tuple(sorted(ran))
    )
    ids, there = dict(own.ids), {module: each.look for module, each in shared.programs}
    mine = {ids.get(module, module): each.look for module, each in held.items()}
    needs = {ids.get(module, module) for module in ran} & mine.keys()
    if shared.ops is None or any(there.get(module) != mine[module] for module in needs):
        return part, None
    raw, table, placed = _laid_out(task, shared, renamed(host, ids))
    lean = _lean(raw.host)
    part = replace(part, host=lean, table=replace(raw, host=lean))
    return part, _Placed(task, table, placed)


def _to_send(own: Own, shared: Shared, held: Mapping[int, Held], ran: set[int]) -> list[int]:
    """Programs of a host that may stand for all hosts': where its own is the first of its id.

    One that ran here and looks like another's gets that one's id, with few exceptions; those are
    asked for.
    """
    ids, known = dict(own.ids), shared.known
    looks = {look for _, look in known}
    return [
        module
        for module, (look, _) in held.items()
        if module in own.wanted
        or look not in looks
        or (module not in ran and (ids.get(module, module), look) not in known)
    ]


def _laid_out(task: Task, shared: Shared, host: Host) -> tuple[HostTables, HostTables, Table]:
    """A host placed by itself, under the numbers of the others' steps, and its work there."""
    ops, instructions, inside, known = _lookups(shared)
    adds = {module: Program(name, b"", {}, []) for module, name in task.own.adds}
    host = replace(host, programs={**adds, **host.programs})
    host = with_one_device_clock(host, ops, False)
    raw, work = host_tables(host, ops, instructions, inside, known)
    if raw.cut.is_as_in_script or not task.own.numbers:
        return raw, raw, work
    return raw, *numbered_as(raw, work, task.own.numbers)


def _asked(batch: Batch, placed: Sequence[_Placed]) -> Read:
    """Facts and answer of hosts."""
    ops, *_, known = _lookups(batch.shared)
    hosts = [each.table.host for each in placed]
    events = events_frame(hosts, [each.work for each in placed])
    facts = facts_of(hosts, events, ops)
    trace = _trace_of(batch.shared, placed, events, facts, ops).knowing(known)
    return Read(
        parts=(),
        facts=facts,
        runs_in=frozenset(trace.table("executions")["step"].tolist()),
        works_in=frozenset(distinct(work_of(events)["step"]).tolist()),
        answer=None if batch.shared.steps is None else batch.ask(trace, batch.shared.inside),
    )


def _trace_of(
    shared: Shared,
    placed: Sequence[_Placed],
    events: Table,
    facts: WorkFacts,
    ops: Table,
) -> Trace:
    """The work of some hosts in the steps of the run: it says nothing of the others."""
    tables = [each.table for each in placed]
    hosts = [table.host for table in tables]
    leads = [(host.name, host.record.lead) for host in hosts]
    executions = executions_frame(tables)
    sides = HostSides(hosts, {}, records=[each.task.record for each in placed])
    nothing = {"module": -1, "start_ns": 0, "duration_ns": 0, "reason": ""}
    steps = [{"step": step, "used": used, **nothing} for step, used in shared.steps or ()]
    programs = {m: program for host in reversed(hosts) for m, program in host.programs.items()}
    return Trace(
        meta=TraceMeta(
            path=str(placed[0].task.file),
            platform=hosts[0].platform,
            hosts=(*(host.name for host in hosts), "the others"),
            devices=len(facts.tally.places),
            jax_version=hosts[0].jax_version,
            framework=hosts[0].framework,
            events=sum(host.record.events for host in hosts),
            are_steps_numbered_by_script=shared.is_numbered,
            clocks_apart=tuple(name for name, lead in leads if lead and not lead.is_comparable),
        ),
        trust=(),
        devices=DEVICES.table(),
        **{name: without(name) for name in ("buffers", "dropped", "routing")},
        received=without("received"),
        events=events,
        hlo_ops=ops,
        executions=executions,
        modules=modules_frame(programs, facts.self_ns, executions),
        steps=STEPS.table(steps),
        rendezvous=rendezvous_frame(tables),
        markers=lambda: markers_frame(tables),
        launches=sides.launches,
        host_events=sides.events,
        allocations=sides.allocations,
        host_facts=sides.facts,
    )


class Lookups(NamedTuple):
    """What placing looks up in the programs of a run: made once for all hosts read here."""

    ops: Table
    instructions: Mapping[tuple[int, str], int]
    inside: Mapping[int, np.ndarray]
    known: Programs


_made = Latest()


def _lookups(shared: Shared) -> Lookups:
    found: Lookups = _made.of(shared.programs, functools.partial(_made_of, shared.ops))
    return found


def _made_of(ops: Table | None) -> Lookups:
    assert ops is not None
    rows = {pair: row for row, pair in enumerate(ops.rows("module", "op"))}
    return Lookups(ops, rows, bodies(ops), Programs(ops))


_looks: dict[str, str] = {}


def held_of(program: Program) -> Held:
    """What a program is, and what programs that look alike on all hosts have in common."""
    content = hashlib.sha256(program.name.encode() + b"\0" + program.proto).hexdigest()
    if content not in _looks:
        _looks[content] = hashlib.sha256(repr(looks_of(program)).encode()).hexdigest()
    return Held(_looks[content], content)


def _lean(host: Host) -> Host:
    """A host without its work, and what else is for placing alone."""
    record = replace(
        host.record,
        labels=Labels(),
        work=[],
        waits=[],
        launches=[],
        calls=NO_CALLS,
        called=None,
    )
    return replace(host, record=record, programs={})


def without(name: str) -> Loader:
    """What stands for a frame that was not kept."""
    return functools.partial(_refuse, name)


def _refuse(name: str) -> Table:
    raise NotByHostError(
        f"this needs all '{name}' of all hosts at once, and the run was read host by host; "
        "choose some hosts by --host, or read it whole by --at-once"
    )
