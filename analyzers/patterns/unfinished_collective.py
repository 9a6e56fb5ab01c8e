"""Pattern: a step hangs in a collective, and the profile ends in silence.

The profiler writes a kernel down when it has ended, so one that never ends is not there: what the
profile shows is that the devices work, stop in the middle of a step, and do nothing until the
capture is given up. MaxText with ragged_all_to_all (sparse_matmul, EP = 2) does this in its first
step on 2 × H100 (jax 0.11.2); with XLA's decomposer of the op it runs.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.classify.components import EXCHANGES
from moeprof.analyzers.laws.time import early_end, told_of
from moeprof.analyzers.question import Hint, Pattern
from moeprof.tables.intervals import work_of
from moeprof.tables.trace import Trace
from moeprof.units import format_ns

LEAST_NS = 10_000_000_000
"""Silence that is no pause between steps: XLA warns of a stuck rendezvous after as long."""
_STEPS = 20
"""The same in lengths of a step."""


def find(trace: Trace) -> Hint | None:
    """Silence at the end of the recording, or hosts that stand in a collective without another."""
    return _silence(trace) or _absence(trace)


def _absence(trace: Trace) -> Hint | None:
    """A host whose work ends early, while the others stand in a collective that it is to join."""
    if len(trace.meta.hosts) < 2:
        return None
    found = early_end(trace)
    if found is None or found.standing is None:
        return None
    return Hint(
        told_of(found),
        f"look at {found.hosts[0]}: its log, its kernel's log (memory, GPU faults) and its process "
        "at that time; the others wait for it until NCCL gives up",
        "step_time",
    )


def _silence(trace: Trace) -> Hint | None:
    """Silence from the last device work to the end of the recording, after a step that was cut."""
    events, steps = work_of(trace.table("events")), trace.table("steps")
    if not trace.meta.recorded_ns or not len(events) or not len(steps):
        return None
    ends = events["start_ns"] + events["duration_ns"]
    silence_ns = trace.meta.recorded_ns - int(ends.max())
    used = steps["duration_ns"][steps["used"]]
    least_ns = max(LEAST_NS, _STEPS * float(np.median(used)) if len(used) else 0)
    last = steps.dicts()[int(steps["start_ns"].argmax())]
    if silence_ns < least_ns or last["used"]:
        return None
    ops = trace.table("hlo_ops")
    opcodes = ops["opcode"][ops["module"] == last["module"]].tolist()
    exchanges = [opcode for opcode in opcodes if opcode.removesuffix("-start") in EXCHANGES]
    if not exchanges:
        return None
    final = events[ends == ends.max()][:1].dicts()[0]
    is_ragged = any(opcode.startswith("ragged") for opcode in exchanges)
    return Hint(
        f"devices fall silent in step {last['step']} and do nothing for {format_ns(silence_ns)} "
        f"until the recording ends; the last work to end is {final['op'] or final['name']}, and "
        f"the program has {len(exchanges)} "
        + ("ragged all-to-all or all-to-all op(s)" if is_ragged else "all-to-all op(s)"),
        (
            "try XLA_FLAGS=--xla_gpu_unsupported_enable_ragged_all_to_all_decomposer=true: "
            "ragged_all_to_all hangs in MaxText with EP on one host; "
            if is_ragged
            else ""
        )
        + "look for a rank that never came (XLA's log names a rendezvous that waits)",
        "step_time",
        source="seen with MaxText 0.2.5, jax 0.11.2 on 2 × H100; cause not established",
    )


PATTERN = Pattern(
    "unfinished_collective", "A collective operation never ended", 1, find, comes_first=True
)
