"""Traces and findings small enough to add up by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from moeprof.answers.document import Document
from moeprof.reports.run.document import build
from moeprof.tables import host_side
from moeprof.tables import trace as tables
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.law import Law, Verdict
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace, TraceMeta

MS = 1_000_000
SCRIPT = "</script><script>window.hacked=1</script>"
HOSTILE = (
    SCRIPT,
    'a"b\\c',
    "x\u0001y\u001b[31mred",
    "k\ufffdk",
    "left\u202eright",
    "<b>bold</b><br>& &amp; 'quoted'",
    "",
    "template<" + "int, " * 8000 + ">",
)
"""Names that programs have: markup, quotes, control codes, direction marks, none, 40 kB."""

# Milliseconds per step by (component, phase); they add up to 400.
PARTS = {
    ("grouped_gemm", "forward"): 50,
    ("grouped_gemm", "recompute"): 40,
    ("grouped_gemm", "backward"): 70,
    ("attention", "forward"): 30,
    ("attention", "backward"): 58,
    ("dispatch", "forward"): 28,
    ("combine", "backward"): 36,
    ("permute", "forward"): 36,
    ("router", "forward"): 12,
    ("optimizer", "other"): 20,
    ("head", "forward"): 12,
    ("unattributed", "forward"): 8,
}

BREAKDOWN = Schema(
    "breakdown",
    (
        Column("component", "text", "", "part of the model or of the runtime"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("per_step_ns", "float64", "ns", "device time per step, averaged over devices"),
    ),
)
RECEIVE_BUFFERS = Schema(
    "receive_buffers",
    (
        Column("op", "text", "", "instruction that fills the buffer"),
        Column("role", "text", "", "what the buffer is for"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("worst_bytes", "int64", "bytes", "bytes the program reserves"),
        Column("used_bytes", "float64", "bytes", "bytes that tokens filled; none where unknown"),
    ),
)
STEP_TIME = Schema(
    "step_time",
    (
        Column("step", "int64", "", "training step"),
        Column("duration_ns", "int64", "ns", "first start to last end"),
        Column("used", "bool", "", "whether figures are taken from it"),
    ),
)


def breakdown(parts: Mapping[tuple[str, str], float] = PARTS) -> Analysis:
    """Milliseconds per step by (component, phase)."""
    rows = [
        {"component": component, "phase": phase, "per_step_ns": float(ms * MS)}
        for (component, phase), ms in parts.items()
    ]
    return Analysis(
        "breakdown",
        "Where does the device time of a step go?",
        (Metric("unattributed", 0.02, "share"), Metric("recompute", 40.0 * MS, "ns")),
        BREAKDOWN,
        BREAKDOWN.frame(rows),
        ("Time that two kernels share on one device counts for both.",),
    )


def receive_buffers(*buffers: tuple[str, int, float]) -> Analysis:
    """One buffer per (op, worst-case bytes, used bytes)."""
    rows = [
        {"op": op, "role": "dispatch", "phase": "forward", "worst_bytes": worst, "used_bytes": used}
        for op, worst, used in buffers
    ]
    return Analysis(
        "receive_buffers",
        "How much of the worst-case receive buffers do tokens use?",
        (),
        RECEIVE_BUFFERS,
        RECEIVE_BUFFERS.frame(rows),
    )


def step_time(steps: pd.DataFrame) -> Analysis:
    """The steps as a finding."""
    return Analysis(
        "step_time",
        "How long does a step take, and how steady is it?",
        (Metric("tokens per second", None, "tokens/s"),),
        STEP_TIME,
        STEP_TIME.frame(steps[STEP_TIME.names].to_dict("list")),
    )


def trace(
    path: str = "runs/base",
    steps: Sequence[tuple[int, int, str]] = ((2, 900, "compiles"), (3, 410, ""), (4, 414, "")),
    trust: Sequence[tuple[str, Verdict, str]] = (("dropped_events", "ok", "none dropped"),),
    run_folder: str = "",
) -> Trace:
    """A trace with steps (step, milliseconds, reason not to use it) and nothing else."""
    rows = [
        {"step": step, "module": 1, "start_ns": step * 1000 * MS, "duration_ns": ms * MS}
        | {"used": not reason, "reason": reason}
        for step, ms, reason in steps
    ]
    return Trace(
        meta=TraceMeta(
            path, "gpu", ("node-a",), 8, "0.12.0", 123456, ("session read: s1",), run_folder
        ),
        trust=tuple(Law(*check) for check in trust),
        events=tables.EVENTS.frame(),
        devices=tables.DEVICES.frame(),
        hlo_ops=tables.HLO_OPS.frame(),
        executions=tables.EXECUTIONS.frame(),
        modules=tables.MODULES.frame(),
        steps=tables.STEPS.frame(rows),
        buffers=tables.BUFFERS.frame(),
        rendezvous=tables.RENDEZVOUS.frame(),
        markers=tables.MARKERS.frame(),
        dropped=tables.DROPPED.frame(),
        routing=pd.DataFrame(),
        received=pd.DataFrame(),
        launches=host_side.LAUNCHES.frame(),
        host_events=host_side.HOST_EVENTS.frame(),
        allocations=host_side.ALLOCATIONS.frame(),
        host_facts=host_side.HOST_FACTS.frame(),
    )


def document(path: str = "runs/base", scale: float = 1.0) -> Document:
    """A whole run; `scale` stretches its parts and steps."""
    steps = [(2, 900, "compiles"), (3, int(410 * scale), ""), (4, int(414 * scale), "")]
    made = trace(path, steps)
    buffers = (("all-to-all.7", 3 * 2**30, 0.4 * 2**30), ("all-to-all.9", 2**30, float("nan")))
    findings = (
        step_time(made.steps),
        breakdown({part: ms * scale for part, ms in PARTS.items()}),
        receive_buffers(*buffers),
    )
    return build(made, {finding.name: finding for finding in findings})


def hostile_document() -> Document:
    """Every hostile name as a component, a buffer, a reason and a check."""
    made = trace(
        path=f"runs/{SCRIPT[2:]}",
        steps=[(n, 10 + n, name) for n, name in enumerate(HOSTILE)],
        trust=[(name, "warn", name) for name in HOSTILE],
    )
    findings = (
        step_time(made.steps),
        breakdown({(name, "forward"): 1.0 + n for n, name in enumerate(HOSTILE)}),
        receive_buffers(*((name, 2**20, 2.0**18) for name in HOSTILE)),
    )
    return build(made, {finding.name: finding for finding in findings})
