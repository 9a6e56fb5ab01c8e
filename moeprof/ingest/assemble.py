"""Question: how do the records of all processes, worked on side by side, become one `Trace`?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from typing import NamedTuple, TypeVar

from moeprof.columns.grouping import distinct, grouped, unique_rows
from moeprof.columns.table import Table, stacked
from moeprof.hlo.program import Programs
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.host_frames import (
    HostSides,
    dropped_frame,
    events_frame,
    executions_frame,
    markers_frame,
    rendezvous_frame,
    steps_apart,
    steps_frame,
)
from moeprof.ingest.joining.clocks import align, pieces_of_collectives
from moeprof.ingest.joining.common_clock import recorded_window
from moeprof.ingest.joining.device_clocks import with_one_device_clock
from moeprof.ingest.joining.numbering import joined_ids, with_common_numbers
from moeprof.ingest.joining.ranks import ranked
from moeprof.ingest.placing.host_tables import HostTables, host_tables
from moeprof.ingest.placing.lost_launches import compares_devices
from moeprof.ingest.placing.self_time import bodies
from moeprof.ingest.planes.record import Host
from moeprof.ingest.program_frames import buffers_frame, hlo_frame, modules_frame
from moeprof.ingest.sources.beside import NOTHING_BESIDE, Beside
from moeprof.ingest.sources.processes import Processes, Ranked
from moeprof.ingest.sources.routing import Routing, of_recorded_steps
from moeprof.ingest.trust import judge, tally_of
from moeprof.ingest.trust.evidence import Evidence, HostLosses, Tally
from moeprof.ingest.xspace.native_space import thread_count
from moeprof.tables.law import JAX
from moeprof.tables.once import Loader
from moeprof.tables.trace import HostClock, MeshAxis, Trace, TraceMeta
from moeprof.tell import Tell, unheard


@dataclass(frozen=True)
class Source:
    """The path that was given, the run folder that it stands for (empty for none), and notes.

    ``damage`` is what was wrong with files that are in no host: one that could not be read at all,
    the run's record. ``beside`` tells which files of the folder are of the run, ``of_host`` the
    same for the folder of each host, by its name. ``mesh`` is what the run's record says of it.
    """

    path: str
    run_folder: str
    notes: tuple[str, ...]
    processes: Processes
    damage: tuple[str, ...] = ()
    beside: Beside = NOTHING_BESIDE
    of_host: Mapping[str, Beside] = field(default_factory=dict)
    mesh: tuple[MeshAxis, ...] = ()


def assemble(source: Source, hosts: Sequence[Host], routing: Routing) -> Trace:
    """Join the files of a session. The work is taken out of the hosts' records."""
    hosts, renamed = joined_ids(hosts)
    programs: dict[int, Program] = {}
    for host in hosts:
        programs = {**host.programs, **programs}
    parts = [part for host in hosts for part in host.record.work]
    ran = {module for part in parts for module in distinct(part["module"]).tolist()}
    shown = ran & programs.keys() or programs.keys()
    ran_programs = {key: programs[key] for key in shown}
    ops = hlo_frame(ran_programs)
    rows = {pair: row for row, pair in enumerate(ops.rows("module", "op"))}
    inside, known = bodies(ops), Programs(ops)
    hosts = [with_one_device_clock(host, ops, len(hosts) == 1) for host in hosts]
    tables, work = [], []
    for placed, theirs in side_by_side(lambda h: host_tables(h, ops, rows, inside, known), hosts):
        tables.append(placed)
        work.append(theirs)
    tables, work = with_common_numbers(tables, work)
    events = events_frame([table.host for table in tables], work)
    facts = facts_of([table.host for table in tables], events, ops)
    source = replace(source, notes=(*source.notes, *renamed))
    sides = HostSides([table.host for table in tables], source.of_host)
    return joined_trace(
        source,
        tables,
        facts,
        JoinedPrograms(programs, ran_programs, ops),
        routing,
        events=events,
        rendezvous=rendezvous_frame(tables),
        launches=sides.launches,
        host_events=sides.events,
        allocations=sides.allocations,
        host_facts=sides.facts,
    ).knowing(known)


class JoinedPrograms(NamedTuple):
    """The programs of all hosts, those of them that ran, and `HLO_OPS` of the latter."""

    every: Mapping[int, Program]
    ran: Mapping[int, Program]
    ops: Table


@dataclass(frozen=True)
class WorkFacts:
    """What is known of the work of hosts beside the work itself; that of several hosts adds up.

    ``calls`` are `pieces_of_collectives`; ``with_work`` has a row per host, device and program,
    ``self_ns`` the op time of each program; ``windows`` are `recorded_window`.
    """

    tally: Tally
    calls: Table
    with_work: Table
    self_ns: Table
    windows: tuple[tuple[str, int, int], ...]


def facts_of(hosts: Sequence[Host], events: Table, ops: Table) -> WorkFacts:
    """The facts of the work of `hosts`, rows of `EVENTS`."""
    by_module = grouped(events, "module")
    return WorkFacts(
        tally=tally_of(events, distinct(ops["module"])),
        calls=pieces_of_collectives(events, ops),
        with_work=unique_rows(events.select("host", "device", "module")),
        self_ns=Table(
            {
                "module": events["module"][by_module.first],
                "self_ns": by_module.sum(events["self_ns"]),
            }
        ),
        windows=tuple(recorded_window(host, events) for host in hosts),
    )


def facts_together(facts: Sequence[WorkFacts]) -> WorkFacts:
    """The facts of the work of all hosts, of those of some hosts each, in their order."""
    tally = reduce(lambda one, other: one + other, (each.tally for each in facts))
    return WorkFacts(
        tally,
        stacked([each.calls for each in facts]),
        stacked([each.with_work for each in facts]),
        stacked([each.self_ns for each in facts]),
        tuple(window for each in facts for window in each.windows),
    )


def joined_trace(
    source: Source,
    tables: Sequence[HostTables],
    facts: WorkFacts,
    programs: JoinedPrograms,
    routing: Routing,
    **of_work: Table | Loader,
) -> Trace:
    """The trace of all hosts; `of_work` are the frames that hold every piece of their work."""
    executions = executions_frame(tables)
    ops = programs.ops
    found = ranked([table.host for table in tables], facts.with_work, ops, source.processes)
    clocks, not_aligned = align(tables, facts.calls, ops, found)
    meta = _meta(source, tables, facts, clocks, found)
    steps = steps_frame(tables, meta)
    meta = replace(meta, notes=(*meta.notes, *steps_apart(tables)))
    if meta.are_steps_numbered_by_script:
        routing = of_recorded_steps(routing, steps["step"].tolist())
    evidence = _evidence(source, tables, facts, ops, steps, clocks, not_aligned, found)
    return Trace(
        meta=meta,
        trust=judge(replace(evidence, routing=routing)),
        devices=found.devices,
        hlo_ops=ops,
        executions=executions,
        modules=modules_frame(programs.every, facts.self_ns, executions, found.of_module),
        steps=steps,
        buffers=lambda: buffers_frame(programs.ran),
        markers=markers_frame(tables),
        dropped=dropped_frame(_dropped(tables)),
        routing=routing.routing,
        received=routing.received,
        **of_work,
    )


def _dropped(tables: Sequence[HostTables]) -> Counter[str]:
    return sum((table.host.record.dropped for table in tables), Counter())


def _evidence(
    source: Source,
    tables: Sequence[HostTables],
    facts: WorkFacts,
    ops: Table,
    steps: Table,
    clocks: tuple[HostClock, ...],
    not_aligned: Mapping[str, str],
    found: Ranked,
) -> Evidence:
    hosts = [table.host for table in tables]
    return Evidence(
        tally=facts.tally,
        hlo_ops=ops,
        programs=len({module for host in hosts for module in host.programs}),
        steps=steps,
        dropped=_dropped(tables),
        damage=[*_damage(hosts), *source.damage],
        messages=[message for host in hosts for message in host.messages],
        models=[model for host in hosts for model in host.models.values()],
        read=sum(host.record.events for host in hosts),
        doubts=list(dict.fromkeys(table.cut.doubt for table in tables if table.cut.doubt)),
        stray_ns=sum(table.stray_ns for table in tables),
        outliers=[line for host in hosts for line in host.record.outliers],
        not_serial=[line for table in tables for line in table.not_serial],
        hosts=[host.name for host in hosts],
        clocks=clocks,
        not_aligned=not_aligned,
        processes=source.processes,
        windows=facts.windows,
        found=[check for host in hosts for check in host.record.checks],
        damaged=[host.name for host in hosts if host.record.is_damaged],
        ranked=found,
        strange=[name for host in hosts for name in _strange(host)],
        step_ways=[(table.host.name, table.cut.ways) for table in tables],
        leads=[(host.name, host.record.lead) for host in hosts],
        device_clocks=[(host.name, host.record.device_clocks) for host in hosts],
        named=[(host.name, host.record.named) for host in hosts],
        losses=[_losses(table) for table in tables],
        beside=source.beside,
        framework=tables[0].host.framework if tables else JAX,
    )


def _damage(hosts: Sequence[Host]) -> list[str]:
    """What is wrong with the files, each line with its host where there are several."""
    lines = [(host.name, line) for host in hosts for line in host.record.damage]
    return [f"{name}: {line}" if len(hosts) > 1 else line for name, line in lines]


def _are_numbered(tables: Sequence[HostTables], clocks: Sequence[HostClock]) -> bool:
    """Whether steps bear the script's numbers, by its own annotations or those of other hosts."""
    aligned = {clock.host for clock in clocks}
    is_one = [table.cut.is_as_in_script for table in tables]
    return any(is_one) and all(
        own or table.host.name in aligned or not table.cut.steps
        for own, table in zip(is_one, tables, strict=True)
    )


def _strange(host: Host) -> tuple[str, ...]:
    return host.record.merged.strange if host.record.merged else ()


def _losses(table: HostTables) -> HostLosses:
    record = table.host.record
    knows = compares_devices(record.executed, table.lost)
    found = (table.lost, table.silent, table.endless, knows, table.unlaunched, table.pieces)
    return HostLosses(table.host.name, *found)


def _meta(
    source: Source,
    tables: Sequence[HostTables],
    facts: WorkFacts,
    clocks: tuple[HostClock, ...],
    found: Ranked,
) -> TraceMeta:
    hosts = [table.host for table in tables]
    return TraceMeta(
        path=source.path,
        platform=next((h.platform for h in hosts if h.platform != "unknown"), "unknown"),
        hosts=tuple(host.name for host in hosts),
        devices=len(facts.tally.places),
        devices_left_out=sum(len(t.silent) + len(t.lost.excluded) for t in tables),
        jax_version=next((h.jax_version for h in hosts if h.jax_version), ""),
        framework=hosts[0].framework if hosts else JAX,
        events=sum(host.record.events for host in hosts),
        notes=(*source.notes, *dict.fromkeys(n for t in tables for n in (t.cut.how, *t.notes))),
        run_folder=source.run_folder,
        are_steps_numbered_by_script=_are_numbered(tables, clocks),
        clocks=clocks,
        clocks_apart=tuple(
            h.name for h in hosts if h.record.lead and not h.record.lead.is_comparable
        ),
        expected_devices=found.expected if found.missing or not found.unknown else 0,
        missing_processes=source.processes.missing,
        mesh=source.mesh,
        of_other_runs=source.beside.left_out,
        recorded_ns=max((h.stopped_ns - h.started_ns for h in hosts if h.stopped_ns), default=0),
    )


# How are the files of several hosts worked on at once?
#
# By threads: numpy, pandas and the native reader let go of the interpreter in their long loops.

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], tell: Tell = unheard
) -> list[Result]:
    """Results in the order of the items; the first item that fails, in that order, raises.

    ``tell`` hears of every item that is done.
    """
    numbers = count(1)

    def told(item: Item) -> Result:
        result = work(item)
        tell(next(numbers), len(items))
        return result

    tell(0, len(items))
    threads = min(thread_count(), len(items))
    if threads < 2:
        return [told(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(told, items))
