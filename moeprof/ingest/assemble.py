"""Question: how do the records of all processes become the tables of one `Trace`?"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from moeprof.ingest.frames import (
    devices_frame,
    dropped_frame,
    events_frame,
    executions_frame,
    markers_frame,
    rendezvous_frame,
    steps_frame,
)
from moeprof.ingest.hlo_frames import buffers_frame, hlo_frame, modules_frame
from moeprof.ingest.host import Host, HostTables
from moeprof.ingest.programs import Program
from moeprof.ingest.self_time import bodies, self_times_ps, union
from moeprof.ingest.steps import Execution, Step, cut_steps
from moeprof.ingest.trust import Evidence, judge
from moeprof.ingest.work import Work
from moeprof.tables.trace import Trace, TraceMeta


@dataclass(frozen=True)
class Source:
    """The path that was given, the run folder that it stands for (empty for none), and notes."""

    path: str
    run_folder: str
    notes: tuple[str, ...]


def assemble(
    source: Source,
    hosts: Sequence[Host],
    routing: pd.DataFrame,
    received: pd.DataFrame,
) -> Trace:
    """Join the files of a session. Programs of equal id are taken to be the same program."""
    programs: dict[int, Program] = {}
    for host in hosts:
        programs = {**host.programs, **programs}
    calls = bodies({key: program.module for key, program in programs.items()})
    tables = [_host_tables(host, calls) for host in hosts]
    ops = hlo_frame(programs)
    events = events_frame(tables, ops)
    executions = executions_frame(tables)
    steps = steps_frame(tables)
    dropped = sum((host.record.dropped for host in hosts), Counter())
    damage = [line for host in hosts for line in host.record.damage]
    read = sum(host.record.events for host in hosts)
    messages = [message for host in hosts for message in host.messages]
    doubts = list(dict.fromkeys(table.cut.doubt for table in tables if table.cut.doubt))
    stray_ns = sum(table.stray_ns for table in tables)
    return Trace(
        meta=_meta(source, tables, events),
        trust=judge(
            Evidence(events, ops, steps, dropped, damage, messages, read, doubts, stray_ns)
        ),
        events=events,
        devices=devices_frame(events, [host.name for host in hosts]),
        hlo_ops=ops,
        executions=executions,
        modules=modules_frame(programs, events, executions),
        steps=steps,
        buffers=buffers_frame(programs),
        rendezvous=rendezvous_frame(tables),
        markers=markers_frame(tables),
        dropped=dropped_frame(dropped),
        routing=routing,
        received=received,
    )


def _meta(source: Source, tables: Sequence[HostTables], events: pd.DataFrame) -> TraceMeta:
    hosts = [table.host for table in tables]
    return TraceMeta(
        path=source.path,
        platform=next((h.platform for h in hosts if h.platform != "unknown"), "unknown"),
        hosts=tuple(host.name for host in hosts),
        devices=len(events[["host", "device"]].drop_duplicates()),
        jax_version=next((h.jax_version for h in hosts if h.jax_version), ""),
        events=sum(host.record.events for host in hosts),
        notes=(*source.notes, *dict.fromkeys(table.cut.how for table in tables)),
        run_folder=source.run_folder,
        are_steps_numbered_by_script=all(table.cut.is_as_in_script for table in tables),
    )


def _host_tables(host: Host, calls: Mapping[tuple[int, str], frozenset[str]]) -> HostTables:
    work = host.record.work
    work.sort(key=lambda item: (item.device, item.start_ps, -item.end_ps))
    per_device, whole = _executions(work, host.zero_ns)
    record = host.record
    cut = cut_steps(whole, record.markers, record.launches, record.compiles_ps, host.counting)
    step_of = {run: step.step for step in cut.steps for run in step.runs}
    self_ps = self_times_ps(work, calls)
    around = [_step_around(cut.steps, item.start_ps // 1000 - host.zero_ns) for item in work]
    numbers = [
        step_of.get((item.module, item.run_id), -1 if _has_run(item) else step)
        for item, step in zip(work, around, strict=True)
    ]
    stray_ps = sum(
        ps for ps, a, n in zip(self_ps, around, numbers, strict=True) if a != -1 and n == -1
    )
    return HostTables(host, self_ps, per_device, cut, step_of, numbers, stray_ps // 1000)


def _has_run(item: Work) -> bool:
    return item.run_id != -1 and item.module != -1


def _step_around(steps: Sequence[Step], at_ns: int) -> int:
    """Number of the step whose device work spans `at_ns`, of several the last begun; -1 for none.

    `steps` are in order of time.
    """
    at = bisect_right(steps, at_ns, key=lambda step: step.start_ns) - 1
    while at >= 0 and not steps[at].runs:
        at -= 1
    return steps[at].step if at >= 0 and at_ns <= steps[at].end_ns else -1


def _executions(
    work: Iterable[Work], zero_ns: int
) -> tuple[list[tuple[int, Execution]], list[Execution]]:
    """Executions per device, and over all devices of the host."""
    spans: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for item in work:
        if _has_run(item):
            span = (item.start_ps // 1000 - zero_ns, item.end_ps // 1000 - zero_ns)
            spans[item.module, item.run_id, item.device].append(span)
    per_device = []
    together: dict[tuple[int, int], list[Execution]] = defaultdict(list)
    for (module, run_id, device), intervals in spans.items():
        execution = _execution(module, run_id, intervals)
        per_device.append((device, execution))
        together[module, run_id].append(execution)
    whole = [_over_devices(parts) for parts in together.values()]
    return per_device, sorted(whole, key=lambda e: e.start_ns)


def _execution(module: int, run_id: int, intervals: list[tuple[int, int]]) -> Execution:
    busy = union(intervals)
    start, end = min(a for a, _ in intervals), max(b for _, b in intervals)
    return Execution(
        module, run_id, start, end, sum(b - a for a, b in busy), len(intervals), devices=1
    )


def _over_devices(parts: list[Execution]) -> Execution:
    return Execution(
        module=parts[0].module,
        run_id=parts[0].run_id,
        start_ns=min(e.start_ns for e in parts),
        end_ns=max(e.end_ns for e in parts),
        busy_ns=sum(e.busy_ns for e in parts),
        ops=sum(e.ops for e in parts),
        devices=len(parts),
    )
