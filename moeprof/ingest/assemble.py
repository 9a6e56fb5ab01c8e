"""Question: how do the records of all processes become the tables of one `Trace`?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
from moeprof.ingest.host_tables import host_tables
from moeprof.ingest.programs import Program
from moeprof.ingest.self_time import bodies
from moeprof.ingest.trust import Evidence, judge
from moeprof.ingest.work import Labels
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
    labels: Labels,
    routing: pd.DataFrame,
    received: pd.DataFrame,
) -> Trace:
    """Join the files of a session. Programs of equal id are taken to be the same program."""
    programs: dict[int, Program] = {}
    for host in hosts:
        programs = {**host.programs, **programs}
    ops = hlo_frame(programs)
    rows = {pair: row for row, pair in enumerate(zip(ops["module"], ops["op"], strict=True))}
    inside = bodies(ops)
    tables = [host_tables(host, rows, inside) for host in hosts]
    events = events_frame(tables, labels)
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
        devices=devices_frame(hosts, events),
        hlo_ops=ops,
        executions=executions,
        modules=modules_frame(programs, events, executions),
        steps=steps,
        buffers=buffers_frame(programs),
        rendezvous=rendezvous_frame(tables, labels),
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
