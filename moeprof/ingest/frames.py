"""Question: how do read records look as tables? One function per frame of a `Trace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from moeprof.ingest.host import Host, HostTables
from moeprof.ingest.space import Int64s
from moeprof.ingest.work import LABELLED, Labels
from moeprof.tables.trace import (
    DEVICES,
    DROPPED,
    EVENTS,
    EXECUTIONS,
    MARKERS,
    RENDEZVOUS,
    STEPS,
)


def events_frame(tables: Sequence[HostTables], labels: Labels) -> pd.DataFrame:
    """`EVENTS`, by host, device and start."""
    names = [table.host.name for table in tables]
    sizes = [len(table.work) for table in tables]
    work = pd.concat([table.work for table in tables], ignore_index=True)
    texts = pd.Index(labels.texts, dtype="str")
    columns: dict[str, object] = {
        "host": pd.Categorical.from_codes(np.repeat(np.arange(len(names)), sizes), pd.Index(names)),
        "duration_ns": work["end_ns"] - work["start_ns"],
    }
    for name in (*LABELLED, "evidence"):
        columns[name] = _categories(work[name].to_numpy(), texts)
    return EVENTS.frame({**{n: work[n] for n in EVENTS.names if n in work}, **columns})


def _categories(codes: Int64s, texts: pd.Index[str]) -> pd.Categorical[str]:
    """Texts by code, with the used ones as categories."""
    used, inverse = np.unique(codes, return_inverse=True)
    return pd.Categorical.from_codes(inverse, categories=texts[used])


def devices_frame(hosts: Sequence[Host], events: pd.DataFrame) -> pd.DataFrame:
    """`DEVICES`, by rank: hosts in order of their process, else as given; devices by ordinal."""
    with_work = events[["host", "device"]].drop_duplicates()
    rows: list[dict[str, object]] = []
    for host in sorted(hosts, key=lambda host: host.process):
        worked = with_work["device"][with_work["host"] == host.name]
        for device in sorted({*host.models, *worked.tolist()}):
            model = host.models.get(device, "")
            rows.append({"host": host.name, "device": device, "rank": len(rows), "model": model})
    return DEVICES.frame(rows)


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


def rendezvous_frame(tables: Sequence[HostTables], labels: Labels) -> pd.DataFrame:
    """`RENDEZVOUS`, by host and start."""
    texts = np.array(labels.texts, dtype=object)
    parts = []
    for table in tables:
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
