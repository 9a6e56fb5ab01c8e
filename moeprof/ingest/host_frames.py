"""Question: how does what hosts recorded look as tables? One function per frame of a `Trace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from moeprof.columns.coded import Coded, by_alphabet, code_type
from moeprof.columns.grouping import grouped_columns
from moeprof.columns.table import Table, joined, stacked
from moeprof.ingest.placing.host_tables import HostTables
from moeprof.ingest.planes.host_side import Calls, HostFile, read_allocations, read_calls
from moeprof.ingest.planes.record import LABELLED, Host, Labels
from moeprof.ingest.sources.beside import NOTHING_BESIDE, Beside
from moeprof.ingest.sources.routing import named_numbers
from moeprof.ingest.sources.window_record import Dated, HostRecord, read_host_record
from moeprof.ingest.xspace.space import Int64s
from moeprof.tables.clock import is_comparable, to_common
from moeprof.tables.host_side import (
    ALLOCATIONS,
    COMPILE,
    GARBAGE,
    HOST_EVENTS,
    HOST_FACTS,
    LAUNCHES,
)
from moeprof.tables.schema import Schema
from moeprof.tables.trace import (
    DROPPED,
    EVENTS,
    EXECUTIONS,
    MARKERS,
    RENDEZVOUS,
    STEPS,
    TraceMeta,
)


def events_frame(hosts: Sequence[Host], work: list[Table]) -> Table:
    """`EVENTS`, by host, device and start. The tables of `work` are taken out of the list.

    Of several hosts a column after the other is joined and given up, so that all the work is in
    memory once.
    """
    sizes = [len(frame) for frame in work]
    parts = [dict(each.columns) for each in work]
    work.clear()
    for part in parts:
        part["duration_ns"] = part["end_ns"] - part["start_ns"]
        del part["end_ns"], part["graph_id"]
    codes = np.repeat(np.arange(len(hosts)).astype(code_type(len(hosts))), sizes)
    columns: dict[str, object] = {"host": Coded(codes, [host.name for host in hosts])}
    labels = [host.record.labels for host in hosts]
    for name in EVENTS.names[1:]:
        found = [part.pop(name) for part in parts]
        is_text = name in (*LABELLED, "evidence")
        columns[name] = _coded(found, labels) if is_text else joined(found)
    return EVENTS.table(columns)


def _coded(codes: Sequence[Int64s], labels: Sequence[Labels]) -> Coded:
    """Texts by each host's code, one host behind the other, with those that are used alone."""
    together: dict[str, int] = {}
    tables = []
    for mine, known in zip(codes, labels, strict=True):
        texts = known.texts
        is_used = np.zeros(len(texts), dtype=bool)
        is_used[mine] = True
        table = np.zeros(len(texts), np.int32)
        for code in np.flatnonzero(is_used).tolist():
            table[code] = together.setdefault(texts[code], len(together))
        tables.append(table)
    narrow = code_type(len(together))
    whole = [table.astype(narrow)[mine] for table, mine in zip(tables, codes, strict=True)]
    return Coded(np.concatenate(whole), list(together))


def executions_frame(tables: Sequence[HostTables]) -> Table:
    """`EXECUTIONS`, by host, device and start."""
    parts = []
    for table in tables:
        rows = table.executions
        step = _steps_of(table, rows)
        lasts_ns = rows["end_ns"] - rows["start_ns"]
        whole = rows.assign(host=table.host.name, step=step, duration_ns=lasts_ns)
        parts.append(EXECUTIONS.table(whole.columns))
    return stacked(parts)


def _steps_of(table: HostTables, rows: Table) -> Int64s:
    """The step of each row of a module and an execution."""
    steps = [table.step_of.get(pair, -1) for pair in rows.rows("module", "run_id")]
    return np.array(steps, np.int64)


def steps_frame(tables: Sequence[HostTables], meta: TraceMeta) -> Table:
    """`STEPS`, by number, from the first host's start to the last host's end.

    Where clocks of several hosts are not aligned, a step begins as on the first host that has it
    and lasts as long as on the slowest one. A step that a host with steps lacks is not used: its
    sums would be divided by devices that are not in them.
    """
    own = [(table.host.name, step) for table in tables for step in table.cut.steps]
    if not own:
        return STEPS.table()
    number = np.array([step.step for _, step in own], np.int64)
    start_ns = np.array([step.start_ns for _, step in own], np.int64)
    end_ns = np.array([step.end_ns for _, step in own], np.int64)
    host = Coded.of(name for name, _ in own)
    if is_comparable(meta):
        for stamps_ns in (start_ns, end_ns):
            for name in meta.hosts:
                mine = host == name
                stamps_ns[mine] = to_common(meta, name, stamps_ns[mine])
    steps = grouped_columns([number])
    hosts, of_all = steps.distinct(host), len(host.texts)
    first_ns = steps.min(start_ns) if is_comparable(meta) else start_ns[steps.first]
    lasts_ns = steps.max(end_ns) - first_ns if is_comparable(meta) else steps.max(end_ns - start_ns)
    reasons = [
        next((own[row][1].reason for row in rows.tolist() if own[row][1].reason), "")
        or ("" if count == of_all else f"work of {count} of {of_all} hosts")
        for rows, count in zip(steps.rows(), hosts.tolist(), strict=True)
    ]
    return STEPS.table(
        {
            "step": number[steps.first],
            "module": [own[row][1].module for row in steps.first.tolist()],
            "start_ns": first_ns,
            "duration_ns": lasts_ns,
            "used": [not reason for reason in reasons],
            "reason": reasons,
        }
    )


def steps_apart(tables: Sequence[HostTables]) -> tuple[str, ...]:
    """Which steps no hosts are compared in, as some recorded them and others did not; in words."""
    own = [{step.step for step in table.cut.steps if step.runs} for table in tables]
    own = [numbers for numbers in own if numbers]
    if not own:
        return ()
    alone = own[0].union(*own[1:]) - own[0].intersection(*own[1:])
    if not alone:
        return ()
    told = f"{'step' if len(alone) == 1 else 'steps'} {named_numbers(alone)}"
    return (f"{told}: not on all hosts, which are compared in common steps alone",)


def rendezvous_frame(tables: Sequence[HostTables]) -> Table:
    """`RENDEZVOUS`, by host and start."""
    parts = []
    for table in tables:
        texts = table.host.record.labels.texts
        for waits in table.host.record.waits:
            part = waits.assign(
                host=table.host.name,
                name=Coded(waits["name"], texts),
                op=Coded(waits["op"], texts),
                step=_steps_of(table, waits),
                duration_ns=waits["end_ns"] - waits["start_ns"],
            )
            parts.append(RENDEZVOUS.table(part.sorted("start_ns").columns))
    return stacked(parts) if parts else RENDEZVOUS.table()


def markers_frame(tables: Sequence[HostTables]) -> Table:
    """`MARKERS`, by host and start."""
    rows = [
        {
            "host": table.host.name,
            "name": marker.name,
            "step": marker.step,
            "start_ns": marker.start_ns,
            "duration_ns": marker.end_ns - marker.start_ns,
        }
        for table in tables
        for marker in sorted(table.host.record.markers, key=lambda m: m.start_ns)
    ]
    return MARKERS.table(rows)


def dropped_frame(dropped: Counter[str]) -> Table:
    """`DROPPED`, most frequent first."""
    return DROPPED.table([{"what": w, "count": n} for w, n in dropped.most_common()])


# How does what several hosts did look as tables? Read at the first look at one.

_CAPTURE = "moeprof capture"
"""``line`` of events that capture wrote down itself."""


class HostSides:
    """The files and records of all hosts, and the frames that come of them, each read once."""

    def __init__(
        self,
        hosts: Sequence[Host],
        besides: Mapping[str, Beside],
        records: Sequence[HostRecord] | None = None,
    ) -> None:
        """Nothing is read yet. Of `hosts` no more is kept than where their files are.

        `besides` has by host what lies in its run folder; `records` are what is in it of these
        hosts, where that was read.
        """
        self._known_records = records
        self._files = [HostFile(host.name, host.file, host.zero_ns, host.side) for host in hosts]
        self._places = [(host.process, host.started_ns, host.stopped_ns) for host in hosts]
        self._besides = [besides.get(host.name, NOTHING_BESIDE) for host in hosts]

    def launches(self) -> Table:
        """`LAUNCHES`."""
        return _stacked([calls.launches for calls in self._calls], LAUNCHES)

    def events(self) -> Table:
        """`HOST_EVENTS`, with what capture wrote down where the profile dates its start."""
        parts = []
        for calls, file, record, place in zip(
            self._calls, self._files, self._records, self._places, strict=True
        ):
            _, started_ns, stopped_ns = place
            written = _written(record, file.name, started_ns, stopped_ns)
            parts.append(_stacked([calls.events, written], HOST_EVENTS))
        return _stacked(parts, HOST_EVENTS, by_start=len(parts) < 2)

    def allocations(self) -> Table:
        """`ALLOCATIONS`."""
        return _stacked([read_allocations(file) for file in self._files], ALLOCATIONS)

    def facts(self) -> Table:
        """`HOST_FACTS`."""
        rows = [
            {"host": file.name, "key": key, "value": value}
            for file, record in zip(self._files, self._records, strict=True)
            for key, value in record.facts.items()
        ]
        return HOST_FACTS.table(rows)

    @cached_property
    def _calls(self) -> list[Calls]:
        return [read_calls(file) for file in self._files]

    @cached_property
    def _records(self) -> Sequence[HostRecord]:
        if self._known_records is not None:
            return self._known_records
        return [
            read_host_record(
                None if f"host/p{process}.json" in around.left_out else around.run, process
            )
            for (process, _, _), around in zip(self._places, self._besides, strict=True)
        ]


def _written(record: HostRecord, host: str, started_ns: int, stopped_ns: int) -> Table:
    """What capture dated, as rows that touch the recorded window, by start.

    Its dates and the profile's start are of one clock, that of the host since 1970; without a
    dated start they cannot be placed.
    """
    if not started_ns:
        return HOST_EVENTS.table()
    last_ns = stopped_ns or 2**62
    rows = [
        _row(host, kind, dated, started_ns)
        for kind, found in ((GARBAGE, record.collections), (COMPILE, record.compilations))
        for dated in found
        if dated.start_ns + dated.duration_ns > started_ns and dated.start_ns < last_ns
    ]
    return HOST_EVENTS.table(sorted(rows, key=lambda row: int(str(row["start_ns"]))))


def _row(host: str, kind: str, dated: Dated, started_ns: int) -> dict[str, object]:
    known = {"host": host, "line": _CAPTURE, "kind": kind, "name": dated.name, "step": -1}
    start_ns = dated.start_ns - started_ns
    return {**known, "start_ns": start_ns, "duration_ns": dated.duration_ns, "size_bytes": -1}


def _stacked(parts: Sequence[Table], schema: Schema, *, by_start: bool = True) -> Table:
    """Tables one behind the other, labels joined; `by_start` puts those of one host in order."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return schema.table()
    if len(filled) == 1:
        return filled[0]
    whole = stacked(filled)
    labels = [column.name for column in schema.columns if column.kind == "label"]
    whole = whole.assign(**{name: by_alphabet(whole[name]) for name in labels})
    is_of_one = len(whole["host"].texts) == 1
    return whole.sorted("start_ns") if by_start and is_of_one else whole
