"""Pattern: XLA's one-shot kernel for ragged all-to-all is parallel over update entries alone.

Between the GPUs of one process XLA copies each update entry with one group of threads. An exchange
that sends one slice per peer, the natural way to write it, uses a few of them: on 2 × H100
2.5 GB/s with one update per peer, 124 GB/s with 128, where a copy between peers gets 395 GB/s
(32,768 × 7168 bf16 per GPU, half leaving, jax 0.11.2).
"""

from __future__ import annotations

from typing import Any

from moeprof.analyzers.attribution import programs_of, sure_rows
from moeprof.analyzers.gain import Saving, gain_of
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.collectives import collectives
from moeprof.analyzers.window import window
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_ns

_KERNEL = "RaggedAllToAllKernel"
_FEW = 64
"""Updates per peer below which the kernel is known to be slow."""
_OFFSETS = 2
"""Place among the operands: input, output, then four vectors with one entry per update."""


def find(trace: Trace) -> Hint | None:
    """Ragged all-to-alls that the one-shot kernel runs, with few updates per peer."""
    events = window(trace).events
    rows = sure_rows(events)[events["name"].that(lambda name: _KERNEL in name)]
    rows = rows[rows >= 0]
    if not len(rows):
        return None
    used = trace.hlo_ops.iloc[sorted(set(rows.tolist()))][["module", "op"]]
    table = collectives(trace).table.merge(used, on=["module", "op"])
    table["updates"] = [_updates_per_peer(trace, row) for row in table.itertuples()]
    few = table[table["updates"].between(1, _FEW - 1) & (table["per_step_ns"] > 0)]
    if few.empty:
        return None
    slowest = few.nlargest(1, "per_step_ns")
    columns = zip(few["module"].tolist(), few["op"].tolist(), few["per_step_ns"], strict=True)
    gain = gain_of(trace, (Saving(module, op, ns, ns) for module, op, ns in columns))
    bound = float(slowest["bound_bytes"].iloc[0])
    per_call_ns = float(slowest["per_step_ns"].iloc[0] / slowest["calls"].iloc[0])
    updates = int(slowest["updates"].iloc[0])
    return Hint(
        f"{len(few)} ragged all-to-all(s) run as XLA's one-shot kernel with {updates} "
        f"update(s) per peer: {format_ns(gain.op_ns)} {window(trace).each}, "
        f"{format_ns(per_call_ns)} a call for at most {format_bytes(bound)}, so at most "
        f"{bound / per_call_ns:.1f} GB/s{gain.told}",
        "split each peer's slice into 64 or more updates, or decompose the op: XLA_FLAGS="
        "--xla_gpu_unsupported_enable_ragged_all_to_all_decomposer=true, or use a dispatch kernel "
        "(DeepEP)",
        "dispatch_combine",
        gain_ns=gain.ns,
        source="openxla/xla#33386; rates measured on 2 × H100, jax 0.11.2",
    )


def _updates_per_peer(trace: Trace, site: Any) -> int:
    """Entries of the offsets vector by members of a group; 0 where that is not known."""
    op = programs_of(trace)[site.module].ops[site.op]
    if len(op.operands) <= _OFFSETS or site.group_size < 1:
        return 0
    offsets = programs_of(trace)[site.module].ops.get(op.operands[_OFFSETS])
    return offsets.dims[0] // site.group_size if offsets and offsets.dims else 0


PATTERN = Pattern(
    "slow_ragged_exchange", "The ragged exchange runs far below the speed of the links", 5, find
)
