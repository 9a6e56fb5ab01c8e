"""Question: how do read records look as tables? One function per frame of a `Trace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from moeprof.ingest.host import HostTables
from moeprof.tables.trace import (
    DEVICES,
    DROPPED,
    EVENTS,
    EXECUTIONS,
    MARKERS,
    RENDEZVOUS,
    STEPS,
)


def events_frame(tables: Sequence[HostTables], ops: pd.DataFrame) -> pd.DataFrame:
    """`EVENTS`, by host, device and start; `ops` are the `HLO_OPS` that they resolve to."""
    rows: dict[str, list[object]] = {name: [] for name in EVENTS.names}
    rows_of = {pair: row for row, pair in enumerate(zip(ops["module"], ops["op"], strict=True))}
    for table in tables:
        work, zero = table.host.record.work, table.host.zero_ns
        starts = [item.start_ps // 1000 - zero for item in work]
        ends = [item.end_ps // 1000 - zero for item in work]
        rows["host"] += [table.host.name] * len(work)
        for column in ("device", "line", "name", "module", "op", "run_id"):
            rows[column] += [getattr(item, column) for item in work]
        rows["step"] += table.work_steps
        rows["start_ns"] += starts
        rows["duration_ns"] += [end - start for start, end in zip(starts, ends, strict=True)]
        rows["self_ns"] += [self_ps // 1000 for self_ps in table.self_ps]
        found = [rows_of.get((item.module, item.op), -1) for item in work]
        rows["instruction"] += found
        rows["evidence"] += ["recorded" if row >= 0 else "none" for row in found]
        rows["confidence"] += [float(row >= 0) for row in found]
        rows["kind"] += [_kind(table.host.platform, item.name) for item in work]
        rows["correlation_id"] += [-1] * len(work)
        rows["graph_node"] += [-1] * len(work)
        rows["details"] += [""] * len(work)
    return EVENTS.frame(rows)


def _kind(platform: str, name: str) -> str:
    if platform != "gpu":
        return "op"
    if name.startswith("Memset"):
        return "memset"
    return "copy" if name.startswith(("Memcpy", "CopyDevice", "CopyHost")) else "kernel"


def devices_frame(events: pd.DataFrame, hosts: Sequence[str]) -> pd.DataFrame:
    """`DEVICES`, by rank: hosts in the order given, devices by ordinal."""
    pairs = events[["host", "device"]].drop_duplicates().itertuples(index=False)
    known = sorted(pairs, key=lambda pair: (hosts.index(str(pair[0])), pair[1]))
    rows = [
        {"host": host, "device": device, "rank": rank, "model": ""}
        for rank, (host, device) in enumerate(known)
    ]
    return DEVICES.frame(rows)


def executions_frame(tables: Sequence[HostTables]) -> pd.DataFrame:
    """`EXECUTIONS`, by host, device and start."""
    rows = [
        {
            "host": table.host.name,
            "device": device,
            "module": e.module,
            "run_id": e.run_id,
            "step": table.step_of.get((e.module, e.run_id), -1),
            "start_ns": e.start_ns,
            "duration_ns": e.end_ns - e.start_ns,
            "busy_ns": e.busy_ns,
        }
        for table in tables
        for device, e in sorted(table.executions, key=lambda pair: (pair[0], pair[1].start_ns))
    ]
    return EXECUTIONS.frame(rows)


def steps_frame(tables: Sequence[HostTables]) -> pd.DataFrame:
    """`STEPS`, by number. Of several hosts the longest step is kept, as clocks are not aligned."""
    rows: dict[int, dict[str, object]] = {}
    for table in tables:
        for step in table.cut.steps:
            length = step.end_ns - step.start_ns
            row = rows.setdefault(
                step.step,
                {
                    "step": step.step,
                    "module": step.module,
                    "start_ns": step.start_ns,
                    "duration_ns": length,
                    "used": True,
                    "reason": "",
                },
            )
            row["duration_ns"] = max(int(str(row["duration_ns"])), length)
            if step.reason:
                row["used"], row["reason"] = False, row["reason"] or step.reason
    return STEPS.frame([row for _, row in sorted(rows.items())])


def rendezvous_frame(tables: Sequence[HostTables]) -> pd.DataFrame:
    """`RENDEZVOUS`, by host and start."""
    rows = [
        {
            "host": table.host.name,
            "device": wait.device,
            "name": wait.name,
            "module": wait.module,
            "op": wait.op,
            "run_id": wait.run_id,
            "step": table.step_of.get((wait.module, wait.run_id), -1),
            "start_ns": wait.start_ps // 1000 - table.host.zero_ns,
            "duration_ns": wait.end_ps // 1000 - wait.start_ps // 1000,
        }
        for table in tables
        for wait in sorted(table.host.record.waits, key=lambda w: w.start_ps)
    ]
    return RENDEZVOUS.frame(rows)


def markers_frame(tables: Sequence[HostTables]) -> pd.DataFrame:
    """`MARKERS`, by host and start."""
    rows = [
        {
            "host": table.host.name,
            "name": marker.name,
            "step": marker.step,
            "start_ns": marker.start_ps // 1000 - table.host.zero_ns,
            "duration_ns": marker.end_ps // 1000 - marker.start_ps // 1000,
        }
        for table in tables
        for marker in sorted(table.host.record.markers, key=lambda m: m.start_ps)
    ]
    return MARKERS.frame(rows)


def dropped_frame(dropped: Counter[str]) -> pd.DataFrame:
    """`DROPPED`, most frequent first."""
    return DROPPED.frame([{"what": w, "count": n} for w, n in dropped.most_common()])
