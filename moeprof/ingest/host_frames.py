"""Question: how does what hosts recorded look as tables? One function per frame of a `Trace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from moeprof.columns.table import Table  # bridge
from moeprof.ingest.placing.host_tables import HostTables
from moeprof.ingest.planes.host_side import Calls, HostFile, read_allocations, read_calls
from moeprof.ingest.planes.record import LABELLED, Host, Labels, joined
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


def events_frame(hosts: Sequence[Host], work: list[pd.DataFrame]) -> pd.DataFrame:
    """`EVENTS`, by host, device and start. The frames of `work` are taken out of the list.

    Of several hosts a column after the other is joined and given up, so that all the work is in
    memory once.
    """
    sizes = [len(frame) for frame in work]
    parts = [{name: frame[name].to_numpy() for name in frame} for frame in work]
    work.clear()
    for part in parts:
        part["duration_ns"] = part["end_ns"] - part["start_ns"]
        del part["end_ns"], part["graph_id"]
    codes = np.arange(len(hosts)).astype(np.min_scalar_type(-len(hosts)))
    columns: dict[str, object] = {
        "host": pd.Categorical.from_codes(
            np.repeat(codes, sizes), pd.Index([host.name for host in hosts])
        )
    }
    labels = [host.record.labels for host in hosts]
    for name in EVENTS.names[1:]:
        found = [part.pop(name) for part in parts]
        is_text = name in (*LABELLED, "evidence")
        columns[name] = _categories(found, labels) if is_text else joined(found)
    return EVENTS.frame(columns)


def _categories(codes: Sequence[Int64s], labels: Sequence[Labels]) -> pd.Categorical[str]:
    """Texts by each host's code, one host behind the other, with the used ones as categories."""
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
    narrow = np.min_scalar_type(-max(len(together), 1))
    whole = [table.astype(narrow)[mine] for table, mine in zip(tables, codes, strict=True)]
    return pd.Categorical.from_codes(
        np.concatenate(whole), categories=pd.Index(together, dtype="str")
    )


def executions_frame(tables: Sequence[HostTables]) -> pd.DataFrame:
    """`EXECUTIONS`, by host, device and start."""
    parts = []
    for table in tables:
        rows = table.executions
        pairs = zip(rows["module"].tolist(), rows["run_id"].tolist(), strict=True)
        parts.append(
            rows.assign(
                host=table.host.name,
                step=[table.step_of.get(pair, -1) for pair in pairs],
                duration_ns=rows["end_ns"] - rows["start_ns"],
            )
        )
    whole = pd.concat(parts, ignore_index=True)
    return EXECUTIONS.frame({name: whole[name] for name in EXECUTIONS.names})


def steps_frame(tables: Sequence[HostTables], meta: TraceMeta) -> pd.DataFrame:
    """`STEPS`, by number, from the first host's start to the last host's end.

    Where clocks of several hosts are not aligned, a step begins as on the first host that has it
    and lasts as long as on the slowest one. A step that a host with steps lacks is not used: its
    sums would be divided by devices that are not in them.
    """
    rows = [
        (step.step, step.module, table.host.name, step.start_ns, step.end_ns, step.reason)
        for table in tables
        for step in table.cut.steps
    ]
    found = pd.DataFrame(rows, columns=["step", "module", "host", "start_ns", "end_ns", "reason"])
    if found.empty:
        return STEPS.frame()
    if is_comparable(meta):
        for stamp in ("start_ns", "end_ns"):
            for host in meta.hosts:
                mine = found["host"] == host
                found.loc[mine, stamp] = to_common(meta, host, found[stamp][mine].to_numpy())
    found["duration_ns"] = found["end_ns"] - found["start_ns"]
    found["used"] = found["reason"] == ""
    steps = found.groupby("step", as_index=False).agg(
        module=("module", "first"),
        start_ns=("start_ns", "min" if is_comparable(meta) else "first"),
        end_ns=("end_ns", "max"),
        duration_ns=("duration_ns", "max"),
        used=("used", "all"),
        reason=("reason", lambda reasons: next(filter(None, reasons), "")),
        hosts=("host", "nunique"),
    )
    hosts = int(found["host"].nunique())
    is_partial = steps["used"] & (steps["hosts"] < hosts)
    steps.loc[is_partial, "reason"] = [
        f"work of {count} of {hosts} hosts" for count in steps["hosts"][is_partial]
    ]
    steps["used"] &= ~is_partial
    if is_comparable(meta):
        steps["duration_ns"] = steps["end_ns"] - steps["start_ns"]
    return STEPS.frame({name: steps[name] for name in STEPS.names})


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


def rendezvous_frame(tables: Sequence[HostTables]) -> pd.DataFrame:
    """`RENDEZVOUS`, by host and start."""
    parts = []
    for table in tables:
        texts = np.array(table.host.record.labels.texts, dtype=object)
        for waits in table.host.record.waits:
            pairs = zip(waits["module"].tolist(), waits["run_id"].tolist(), strict=True)
            part = waits.assign(
                host=table.host.name,
                name=texts[waits["name"]],
                op=texts[waits["op"]],
                step=[table.step_of.get(pair, -1) for pair in pairs],
                duration_ns=waits["end_ns"] - waits["start_ns"],
            )
            parts.append(part.sort_values("start_ns", kind="stable"))
    if not parts:
        return RENDEZVOUS.frame()
    whole = pd.concat(parts, ignore_index=True)
    return RENDEZVOUS.frame({name: whole[name] for name in RENDEZVOUS.names})


def markers_frame(tables: Sequence[HostTables]) -> pd.DataFrame:
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
    return MARKERS.frame(rows)


def dropped_frame(dropped: Counter[str]) -> pd.DataFrame:
    """`DROPPED`, most frequent first."""
    return DROPPED.frame([{"what": w, "count": n} for w, n in dropped.most_common()])


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

    def launches(self) -> pd.DataFrame:
        """`LAUNCHES`."""
        return _stacked([calls.launches for calls in self._calls], LAUNCHES)

    def events(self) -> pd.DataFrame:
        """`HOST_EVENTS`, with what capture wrote down where the profile dates its start."""
        parts = []
        for calls, file, record, place in zip(
            self._calls, self._files, self._records, self._places, strict=True
        ):
            _, started_ns, stopped_ns = place
            written = _written(record, file.name, started_ns, stopped_ns)
            parts.append(_stacked([calls.events, written], HOST_EVENTS))
        return _stacked(parts, HOST_EVENTS, by_start=len(parts) < 2)

    def allocations(self) -> pd.DataFrame:
        """`ALLOCATIONS`."""
        return _stacked([read_allocations(file) for file in self._files], ALLOCATIONS)

    def facts(self) -> pd.DataFrame:
        """`HOST_FACTS`."""
        rows = [
            {"host": file.name, "key": key, "value": value}
            for file, record in zip(self._files, self._records, strict=True)
            for key, value in record.facts.items()
        ]
        return HOST_FACTS.frame(rows)

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


def _written(record: HostRecord, host: str, started_ns: int, stopped_ns: int) -> pd.DataFrame:
    """What capture dated, as rows that touch the recorded window, by start.

    Its dates and the profile's start are of one clock, that of the host since 1970; without a
    dated start they cannot be placed.
    """
    if not started_ns:
        return HOST_EVENTS.frame()
    last_ns = stopped_ns or 2**62
    rows = [
        _row(host, kind, dated, started_ns)
        for kind, found in ((GARBAGE, record.collections), (COMPILE, record.compilations))
        for dated in found
        if dated.start_ns + dated.duration_ns > started_ns and dated.start_ns < last_ns
    ]
    return HOST_EVENTS.frame(sorted(rows, key=lambda row: int(str(row["start_ns"]))))


def _row(host: str, kind: str, dated: Dated, started_ns: int) -> dict[str, object]:
    known = {"host": host, "line": _CAPTURE, "kind": kind, "name": dated.name, "step": -1}
    start_ns = dated.start_ns - started_ns
    return {**known, "start_ns": start_ns, "duration_ns": dated.duration_ns, "size_bytes": -1}


def _stacked(
    parts: Sequence[pd.DataFrame], schema: Schema, *, by_start: bool = True
) -> pd.DataFrame:
    """Frames one behind the other, labels joined; `by_start` puts those of one host in order."""
    parts = [Table.of(part).pandas() for part in parts]  # bridge
    filled = [part for part in parts if len(part)]
    if not filled:
        return schema.frame()
    if len(filled) == 1:
        return filled[0]
    labels = [column.name for column in schema.columns if column.kind == "label"]
    whole = pd.concat([part.astype(dict.fromkeys(labels, "str")) for part in filled])
    if by_start and whole["host"].nunique() == 1:
        whole = whole.iloc[np.argsort(whole["start_ns"].to_numpy(), kind="stable")]
    return schema.frame({name: whole[name].reset_index(drop=True) for name in schema.names})
