"""Question: what is kept of one host of many, so that it need not be read again?

Its steps and what joins hosts: a row per call of a collective, sums for the trust record; and the
answer to whatever it was asked. It is read with what is known of the others (`Task`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from moeprof.errors import NotByHostError, TraceError
from moeprof.hlo.program import Programs
from moeprof.ingest.assemble import (
    WorkFacts,
    facts_of,
)
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
from moeprof.ingest.joining.numbering import (
    looks_of,
    numbered_as,
    renamed,
)
from moeprof.ingest.placing.host_tables import HostTables, host_tables
from moeprof.ingest.placing.self_time import bodies
from moeprof.ingest.planes.record import NO_CALLS, Host, Labels
from moeprof.ingest.program_frames import modules_frame
from moeprof.ingest.sources.run_record import Counting
from moeprof.ingest.sources.store import fetched
from moeprof.ingest.sources.window_record import HostRecord
from moeprof.tables.once import Loader
from moeprof.tables.trace import DEVICES, STEPS, Trace, TraceMeta
from moeprof.tables.waits import work_of


class InSteps(NamedTuple):
    """Whether executions, and any work, of a run or of a host are in used steps."""

    runs: bool
    work: bool


Ask = Callable[[Trace, InSteps], Any]
"""What is asked of each host, of whose run that is known too; sent to processes by its name."""


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
    ops: pd.DataFrame | None = None
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
    """One host to read, and what to ask it.

    ``counting`` and ``record`` are what capture wrote down of it. ``url`` is where the file is to
    be had, empty where it lies in its place.
    """

    file: Path
    url: str
    counting: Counting | None
    record: HostRecord
    own: Own
    shared: Shared
    ask: Ask


@dataclass(frozen=True)
class Part:
    """What is kept of one host; of a file that cannot be read the error alone.

    ``host`` is without its work and programs, of which ``programs`` has what they are by id, and
    ``new`` those that were not known by content. ``touched`` are the programs of its work and
    waits, ``ran`` of its work; ``runs_in`` and ``works_in`` are steps with executions and with
    work. ``table``, ``facts`` and ``answer`` are None where it ran a program that was not known,
    and the answer where no steps are.
    """

    key: tuple[object, ...]
    error: TraceError | None = None
    host: Host | None = None
    programs: Mapping[int, Held] = field(default_factory=dict)
    new: Mapping[str, Program] = field(default_factory=dict)
    touched: tuple[int, ...] = ()
    ran: tuple[int, ...] = ()
    table: HostTables | None = None
    facts: WorkFacts | None = None
    runs_in: frozenset[int] = frozenset()
    works_in: frozenset[int] = frozenset()
    answer: Any = None


Runner = Callable[[Sequence[Task]], Iterable[tuple[Task, Part]]]
"""Reads hosts, in any order and place."""


def one_by_one(tasks: Sequence[Task]) -> Iterator[tuple[Task, Part]]:
    """Read hosts here, one after the other."""
    for task in tasks:
        yield task, read_part(task)


def read_part(task: Task) -> Part:
    """Read, place and ask one host, of a file that is fetched and given up where it is remote."""
    if not task.url:
        return _read_part(task)
    try:
        with fetched(task.url, task.file) as file:
            part = _read_part(task._replace(file=file))
    except TraceError as error:
        return Part((task.own, task.shared.key), error)
    if part.error is None:
        return part
    return replace(part, error=TraceError(str(part.error).replace(str(file), task.url)))


def _read_part(task: Task) -> Part:
    own, shared = task.own, task.shared
    key = (own, shared.key)
    try:
        hosts = read_file(task.file, task.counting)
    except TraceError as error:
        return Part(key, error)
    process = own.process if own.process >= 0 else hosts[0].process
    host = replace(
        hosts[0],
        name=own.name or hosts[0].name,
        process=process,
        programs={m: replace(program, damage=[]) for m, program in hosts[0].programs.items()},
    )  # what is damaged in a program is noted where programs are joined
    work = [set(part["module"].unique().tolist()) for part in host.record.work]
    waits = [set(part["module"].unique().tolist()) for part in host.record.waits]
    ran, touched = set().union(*work), set().union(*work, *waits)
    held = {module: held_of(program) for module, program in host.programs.items()}
    sent = _to_send(task, held, ran)
    new = {held[module].content: host.programs[module] for module in sent}
    part = Part(key, None, _lean(host), held, new, tuple(sorted(touched)), tuple(sorted(ran)))
    ids, there = dict(own.ids), {module: each.look for module, each in shared.programs}
    mine = {ids.get(module, module): each.look for module, each in held.items()}
    needs = {ids.get(module, module) for module in ran} & mine.keys()
    if shared.ops is None or any(there.get(module) != mine[module] for module in needs):
        return part
    return replace(part, **_placed(task, renamed(host, ids)))


def _to_send(task: Task, held: Mapping[int, Held], ran: set[int]) -> list[int]:
    """Programs of a host that may stand for all hosts': where its own is the first of its id.

    One that ran here and looks like another's gets that one's id, with few exceptions; those are
    asked for.
    """
    ids, known = dict(task.own.ids), task.shared.known
    looks = {look for _, look in known}
    return [
        module
        for module, (look, _) in held.items()
        if module in task.own.wanted
        or look not in looks
        or (module not in ran and (ids.get(module, module), look) not in known)
    ]


def _placed(task: Task, host: Host) -> dict[str, Any]:
    """Table, facts and answer of a host."""
    ops, instructions, inside, known = _lookups(task.shared)
    adds = {module: Program(name, b"", {}, []) for module, name in task.own.adds}
    host = replace(host, programs={**adds, **host.programs})
    host = with_one_device_clock(host, ops, False)
    raw, work = host_tables(host, ops, instructions, inside, known)
    table = raw
    if not raw.cut.is_as_in_script and task.own.numbers:
        table, work = numbered_as(raw, work, task.own.numbers)
    events = events_frame([table.host], [work])
    facts = facts_of([table.host], events, ops)
    trace = _trace_of_host(task, table, events, facts, ops).knowing(known)
    answer = task.ask(trace, task.shared.inside) if task.shared.steps is not None else None
    return {
        "host": _lean(raw.host),
        "table": replace(raw, host=_lean(raw.host)),
        "facts": facts,
        "runs_in": frozenset(trace.executions["step"].unique().tolist()),
        "works_in": frozenset(work_of(events)["step"].unique().tolist()),
        "answer": answer,
    }


def _trace_of_host(
    task: Task, table: HostTables, events: pd.DataFrame, facts: WorkFacts, ops: pd.DataFrame
) -> Trace:
    """The work of one host in the steps of the run: it says nothing of the others."""
    host, shared = table.host, task.shared
    lead = host.record.lead
    apart = (host.name,) if lead and not lead.is_comparable else ()
    executions = executions_frame([table])
    sides = HostSides([host], {}, records=[task.record])
    nothing = {"module": -1, "start_ns": 0, "duration_ns": 0, "reason": ""}
    steps = [{"step": step, "used": used, **nothing} for step, used in shared.steps or ()]
    return Trace(
        meta=TraceMeta(
            path=str(task.file),
            platform=host.platform,
            hosts=(host.name, "the others"),
            devices=len(facts.tally.places),
            jax_version=host.jax_version,
            events=host.record.events,
            are_steps_numbered_by_script=shared.is_numbered,
            clocks_apart=apart,
        ),
        trust=(),
        devices=DEVICES.frame(),
        **{name: without(name) for name in ("buffers", "dropped", "routing")},
        received=without("received"),
        events=events,
        hlo_ops=ops,
        executions=executions,
        modules=modules_frame(host.programs, facts.self_ns, executions),
        steps=STEPS.frame(steps),
        rendezvous=rendezvous_frame([table]),
        markers=lambda: markers_frame([table]),
        launches=sides.launches,
        host_events=sides.events,
        allocations=sides.allocations,
        host_facts=sides.facts,
    )


class Lookups(NamedTuple):
    """What placing looks up in the programs of a run: made once for all hosts read here."""

    ops: pd.DataFrame
    instructions: Mapping[tuple[int, str], int]
    inside: Mapping[int, np.ndarray]
    known: Programs


class Latest:
    """What was made last, and of what: made once for all hosts read here, by whichever thread."""

    def __init__(self) -> None:
        """Nothing is made yet."""
        self._lock = Lock()
        self._held: tuple[Hashable, Any] | None = None

    def of(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` makes of `key`, kept until another one is asked for."""
        with self._lock:
            if self._held is None or self._held[0] != key:
                self._held = (key, make())
            return self._held[1]


_made = Latest()


def _lookups(shared: Shared) -> Lookups:
    found: Lookups = _made.of(shared.programs, functools.partial(_made_of, shared.ops))
    return found


def _made_of(ops: pd.DataFrame | None) -> Lookups:
    assert ops is not None
    rows = {pair: row for row, pair in enumerate(zip(ops["module"], ops["op"], strict=True))}
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


def _refuse(name: str) -> pd.DataFrame:
    raise NotByHostError(
        f"this needs all '{name}' of all hosts at once, and the run was read host by host; "
        "choose some hosts by --host, or read it whole by --at-once"
    )
