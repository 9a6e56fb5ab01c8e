"""Question: what are the buffers that a message lists, in the model's terms?

They are classified as those of a profile are, by the op that makes each. A message lists the
largest of the peak only: what it does not list is a row of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from moeprof.analyzers.classify.components import MOE
from moeprof.analyzers.classify.layers import layer_number
from moeprof.analyzers.classify.names import scopes
from moeprof.analyzers.heap.at_peak import peak_of
from moeprof.analyzers.heap.contents import DENSE_FALLBACK, dims_of
from moeprof.hlo.instruction import Instruction, parse_frames
from moeprof.hlo.shape import parse_shape
from moeprof.ingest.hlo.buffer_assignment import Buffer, MemoryTotals
from moeprof.ingest.program_frames import ListedProgram, trace_of_lists
from moeprof.projector.oom import ListedBuffer, ProgramText
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

LISTED = Schema(
    "listed_buffers",
    (
        Column("content", "text", "", "kind of tensor"),
        Column("component", "text", "", "part of the step that writes it; empty for arguments"),
        Column("layer_kind", "text", "", "kind of layer"),
        Column("layer", "int64", "", "number of the layer; -1 where its name tells none"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("size_bytes", "int64", "bytes", "size"),
        Column("padding_bytes", "int64", "bytes", "of which padding (TPU)"),
        Column("shape", "text", "", "result, as dtype[dims]"),
        Column("op_name", "text", "", "scope path of the op that writes it"),
        Column("source", "text", "", "file:line of the user's program"),
    ),
)
ARGUMENTS = "arguments"


class Group(NamedTuple):
    """Listed buffers of one layer, part and kind together; ``shape`` is that of the largest."""

    content: str
    component: str
    layer_kind: str
    layer: int
    size_bytes: int
    buffers: int
    shape: str
    are_alike: bool
    op_name: str


def listed_buffers(program: ProgramText) -> pd.DataFrame:
    """`LISTED`, in the order of the message."""
    if not program.buffers:
        return LISTED.frame()
    names = [f"buffer.{number}" for number in range(1, len(program.buffers) + 1)]
    by_name = dict(zip(names, program.buffers, strict=True))
    ops = [_instruction(name, buffer) for name, buffer in by_name.items()]
    rows = [_buffer(n, name, buffer) for n, (name, buffer) in enumerate(by_name.items())]
    listed = ListedProgram("", ops, rows, _totals(program.buffers))
    peak = peak_of(trace_of_lists("", {0: listed}, ()), 0)
    rows_at_peak = [] if peak is None else peak.table.to_dict("records")
    found = {str(row["op"]): {str(k): v for k, v in row.items()} for row in rows_at_peak}
    return LISTED.frame([_row(name, buffer, found.get(name)) for name, buffer in by_name.items()])


def buffers_at_peak(trace: Trace, module: int) -> pd.DataFrame:
    """`LISTED` of a compiled program at its peak; empty where its buffers are not known."""
    peak = peak_of(trace, module)
    if peak is None:
        return LISTED.frame()
    mine = trace.hlo_ops[trace.hlo_ops["module"].eq(module)]
    names = dict(zip(mine["op"].tolist(), mine["op_name"].tolist(), strict=True))
    rows = []
    for row in peak.table.to_dict("records"):
        op_name = str(names.get(row["op"], row["op"]))
        number = layer_number(op_name)
        known = {name: row[name] for name in LISTED.names if name in row}
        layer = -1 if number is None else number
        rows.append({**known, "layer": layer, "padding_bytes": 0, "op_name": op_name})
    return LISTED.frame(rows)


def groups_of(buffers: pd.DataFrame) -> tuple[Group, ...]:
    """The rows of `LISTED` by layer, part and kind, the largest group first."""
    keys = ["content", "component", "layer_kind", "layer"]
    ordered = buffers.sort_values("size_bytes", ascending=False, kind="stable")
    found = []
    for key, part in ordered.groupby(keys, sort=False):
        content, component, layer_kind, layer = map(str, key)
        found.append(
            Group(
                content,
                component,
                layer_kind,
                int(layer),
                int(part["size_bytes"].sum()),
                len(part),
                str(part["shape"].iloc[0]),
                part["shape"].nunique() == 1,
                str(part["op_name"].iloc[0]),
            )
        )
    return tuple(sorted(found, key=lambda group: -group.size_bytes))


def _instruction(name: str, buffer: ListedBuffer) -> Instruction:
    return Instruction(
        name,
        "parameter" if buffer.is_argument else buffer.label or "fusion",
        parse_shape(buffer.shape),
        computation="main",
        op_name=buffer.op_name,
        frames=parse_frames(f"{buffer.source}:") if buffer.source else (),
    )


def _buffer(number: int, name: str, buffer: ListedBuffer) -> Buffer:
    kind = "parameter" if buffer.is_argument else "temp"
    life = (-1, -1, -1) if buffer.is_argument else (0, 0, 1)
    return Buffer(number, name, "", buffer.size_bytes, number, 0, kind, 0, *life, True)


def _totals(buffers: tuple[ListedBuffer, ...]) -> MemoryTotals:
    held = sum(buffer.size_bytes for buffer in buffers if buffer.is_argument)
    rest = sum(buffer.size_bytes for buffer in buffers if not buffer.is_argument)
    return MemoryTotals(held, 0, 0, rest, 0)


def _row(name: str, buffer: ListedBuffer, found: dict[str, object] | None) -> dict[str, object]:
    label = found or {}
    is_named = bool(buffer.op_name)
    number = layer_number(buffer.op_name)
    content = ARGUMENTS if buffer.is_argument else str(label.get("content", "temporary"))
    return {
        "content": content,
        "component": str(label.get("component", "")) if is_named else "",
        "layer_kind": str(label.get("layer_kind", "")) if is_named else "",
        "layer": -1 if number is None else number,
        "phase": str(label.get("phase", "")) if is_named else "",
        "size_bytes": buffer.size_bytes,
        "padding_bytes": buffer.padding_bytes,
        "shape": buffer.shape,
        "op_name": buffer.op_name,
        "source": buffer.source,
    }


def scope_of(op_name: str) -> str:
    """The scope path without program, derivative wrappers and primitive, for people."""
    return "/".join(scopes(op_name)[0]) if op_name else ""


# Which listed buffers hold rows of tokens for the experts, so that fewer rows make them smaller.
# Weights of the experts, their gradients and copies lie in the same scopes and keep their size.
# Rows are told by what moves them (dispatch, combine, permutation), or as matrices of rows by a
# width of the model: a matrix between two widths is a weight.

CAPACITY_EINSUM = re.compile(r"BSEC|EBCM|BSM,BSEC")
"""Products of a capacity-based dispatch: each expert has a block of rows of its own."""
_MOVES_ROWS = frozenset({"dispatch", "combine", "permute", "unpermute"})
_RECEIVED = "receive buffers"
_NO_ROWS = frozenset({"arguments", "weights", "gradients", "gathered weights", "optimizer state"})


def of_rows(buffers: pd.DataFrame) -> pd.Series:
    """Which rows of `LISTED` are buffers of token rows."""
    of_moe = buffers["component"].isin(sorted(MOE)) & ~buffers["content"].isin(
        [DENSE_FALLBACK, *_NO_ROWS]
    )
    dims = [_without_ones(dims_of(str(shape))) for shape in buffers["shape"]]
    is_argument = buffers["content"].eq("arguments").tolist()
    of_arguments = {d for d, held in zip(dims, is_argument, strict=True) if held}
    moved = (buffers["component"].isin(sorted(_MOVES_ROWS)) | buffers["content"].eq(_RECEIVED)) & (
        of_moe
    )
    names = buffers["op_name"].astype(str).tolist()
    phases = buffers["phase"].astype(str).tolist()
    known = {d[0] for d, is_moved in zip(dims, moved, strict=True) if is_moved and len(d) == 2}
    known |= {
        d[0]
        for d, phase, is_moe in zip(dims, phases, of_moe, strict=True)
        if is_moe and phase in ("forward", "recompute") and _is_tall(d, of_arguments)
    }
    widths = {d[-1] for d, is_moe in zip(dims, of_moe, strict=True) if is_moe and d}
    told = [
        is_moved or _has_rows(d, name, known, widths, of_arguments)
        for d, name, is_moved in zip(dims, names, moved, strict=True)
    ]
    return of_moe & pd.Series(told, index=buffers.index, dtype=bool)


def _has_rows(
    dims: Sequence[int],
    name: str,
    known: set[int],
    widths: set[int],
    of_arguments: set[tuple[int, ...]],
) -> bool:
    if len(dims) < 2 or _is_weight(tuple(dims), widths - known, of_arguments):
        return False
    if CAPACITY_EINSUM.search(name):
        return True
    return dims[0] in known and len(dims) == 2


def _is_weight(dims: tuple[int, ...], widths: set[int], of_arguments: set[tuple[int, ...]]) -> bool:
    """Whether an array is a weight, or a stack of them: of one's dimensions, or between widths."""
    is_of_argument = any(held[-len(dims) :] == dims for held in of_arguments)
    return is_of_argument or (dims[-1] in widths and dims[-2] in widths)


def _is_tall(dims: Sequence[int], of_arguments: set[tuple[int, ...]]) -> bool:
    """Whether a matrix may be rows: of no argument's dimensions."""
    return len(dims) == 2 and not any(held[-2:] == tuple(dims) for held in of_arguments)


def _without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)
