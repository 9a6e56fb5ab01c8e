"""A `Trace` out of rows on a few lines, times in ns; what a row does not say is empty."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pandas as pd

from moeprof.tables import host_side
from moeprof.tables import trace as tables
from moeprof.tables.schema import Schema
from moeprof.tables.trace import HostClock, Trace, TraceMeta

_EMPTY = {"int64": -1, "float64": float("nan"), "bool": False, "text": "", "label": ""}
MODULE = 7
Row = Mapping[str, object]

# Scopes of a mixture-of-experts layer: forward, its gradient, and what is recomputed for that.
FORWARD = "jit(step)/jvp()/moe/"
BACKWARD = "jit(step)/transpose(jvp())/moe/"
RECOMPUTED = "jit(step)/transpose(jvp())/checkpoint/rematted_computation/moe/"


def kernel(
    op: str, start_ns: int, duration_ns: int, /, name: str = "", line: str = "1", **more: object
) -> Row:
    """A kernel of step 0 on device 0 of host a; `op` is a row of `HLO_OPS`, or none."""
    known = {"host": "a", "device": 0, "step": 0, "kind": "kernel", "self_ns": duration_ns}
    return {
        **{**known, "op": op, "name": name or op, "line": line, "start_ns": start_ns},
        **{"duration_ns": duration_ns, **more},
    }


def hlo(op: str, opcode: str, /, operands: str = "", size_bytes: int = 0, **more: object) -> Row:
    """An instruction of program 7."""
    known = {"module": MODULE, "op": op, "opcode": opcode, "computation": "main"}
    return {**known, "operands": operands, "size_bytes": size_bytes, **more}


def traced(
    events: Sequence[Row],
    ops: Sequence[Row] = (),
    steps: Mapping[int, tuple[int, int]] | None = None,
    clocks: tuple[HostClock, ...] = (),
    models: Mapping[str, str] | None = None,
    devices: int = 0,
    launches: Sequence[Row] = (),
    host_events: Sequence[Row] = (),
) -> Trace:
    """`steps` are (start, duration) by number; without them step 0 spans all work of each host.

    `models` are device models by host; `devices` of host a are known even if they did nothing.
    """
    rows = pd.DataFrame(_filled(tables.HLO_OPS, ops))
    row_of = {op: row for row, op in enumerate(rows.get("op", ()))}
    placed = [{"instruction": row_of.get(str(event["op"]), -1), **event} for event in events]
    placed = [{"module": MODULE if e["instruction"] != -1 else -1, **e} for e in placed]
    hosts = tuple(sorted({str(event["host"]) for event in events})) or ("a",)
    places = {(str(event["host"]), int(str(event["device"]))) for event in events}
    places |= {("a", device) for device in range(devices)}
    known = [
        {"host": h, "device": d, "rank": rank, "model": (models or {}).get(h, "")}
        for rank, (h, d) in enumerate(sorted(places))
    ]
    spans = _spans(placed) if steps is None else steps
    return Trace(
        meta=TraceMeta("made", "gpu", hosts, len(places), "", len(events), clocks=clocks),
        trust=(),
        events=_frame(tables.EVENTS, placed),
        devices=_frame(tables.DEVICES, known),
        hlo_ops=_frame(tables.HLO_OPS, ops),
        executions=tables.EXECUTIONS.frame(),
        modules=tables.MODULES.frame(),
        steps=_frame(
            tables.STEPS,
            [
                {"step": step, "start_ns": start, "duration_ns": length, "used": True}
                for step, (start, length) in spans.items()
            ],
        ),
        buffers=tables.BUFFERS.frame(),
        rendezvous=tables.RENDEZVOUS.frame(),
        markers=tables.MARKERS.frame(),
        dropped=tables.DROPPED.frame(),
        routing=pd.DataFrame(),
        received=pd.DataFrame(),
        launches=_frame(host_side.LAUNCHES, launches),
        host_events=_frame(host_side.HOST_EVENTS, host_events),
        allocations=host_side.ALLOCATIONS.frame(),
        host_facts=host_side.HOST_FACTS.frame(),
    )


def on_cpu(trace: Trace) -> Trace:
    """The same trace, of a CPU."""
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, platform="cpu"))


def exchanged(scope: str, opcode: str = "all-to-all", other: tuple[int, int] = (700, 300)) -> Trace:
    """700 ns of dispatch, and other work from a start for a time."""
    return traced(
        [kernel("x", 0, 700), kernel("y", *other, line="2")],
        [
            hlo("x", opcode, "y", 64, shape="bf16[4,8]", op_name=scope + "dispatch/a2a"),
            hlo("y", "add", shape="bf16[4,8]", op_name=FORWARD + "router/add"),
        ],
    )


def _spans(events: Sequence[Row]) -> dict[int, tuple[int, int]]:
    table = pd.DataFrame(events, columns=["step", "start_ns", "duration_ns"])
    table["end_ns"] = table["start_ns"] + table["duration_ns"]
    hulls = table.groupby("step").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    return {
        int(str(row.Index)): (int(row.start), int(row.end - row.start))
        for row in hulls.itertuples()
        if row.Index != -1
    }


def _filled(schema: Schema, rows: Sequence[Row]) -> list[dict[str, object]]:
    return [{c.name: row.get(c.name, _EMPTY[c.kind]) for c in schema.columns} for row in rows]


def _frame(schema: Schema, rows: Sequence[Row]) -> pd.DataFrame:
    return schema.frame(_filled(schema, rows))
