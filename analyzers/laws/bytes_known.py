"""Bytes: the size of every array that an op of the used steps reads or writes is known.

An element type that is newer than the table of types has no size. What an op with one moves is not
known, and no sum with it is.
"""

from __future__ import annotations

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.costs.table import costs_of
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import has_unknown_type, unknown_types
from moeprof.tables.law import Law, Scope
from moeprof.tables.trace import Trace

CHECK = "bytes"
_OF_OPS = (
    ("roofline", ("bytes", "intensity", "tb_per_s", "bound", "memory_share", "roofline_ns")),
    (
        "collectives",
        ("bytes", "bound_bytes", "algorithm_gb_per_s", "bus_gb_per_s", "moved_ns", "link_share"),
    ),
    (
        "dispatch_combine",
        ("bytes", "bound_bytes", "algorithm_gb_per_s", "bus_gb_per_s", "link_share"),
    ),
)
_MOST_NAMED = 3


def bytes_known(trace: Trace) -> Law:
    """Whether bytes are known of every op that ran; those of which they are not are named."""
    ops = trace.hlo_ops
    if ops.empty:
        return Law(CHECK, "unchecked", "the profile keeps no program, so no sizes")
    shapes = ops["shape"][ops["size_bytes"].lt(0)].unique()  # no more than a look at a column
    if not any(has_unknown_type(str(shape)) for shape in shapes):
        return Law(CHECK, "ok", "the size of every element type is known", unit="ops")
    costs, programs = costs_of(trace), programs_of(trace)
    open_ops = costs[costs["bytes"].isna()]
    found: dict[str, tuple[str, ...]] = {}
    for module, name in zip(open_ops["module"], open_ops["op"], strict=True):
        program = programs[int(module)]
        types = _types(program, program.ops[str(name)])
        if types:
            found[str(name)] = types
    if not found:
        return Law(
            CHECK,
            "ok",
            "no op that ran reads or writes an element type of unknown size",
            unit="ops",
        )
    return Law(
        CHECK,
        "fail",
        f"element type {_listed(sorted({t for types in found.values() for t in types}))} is in no "
        f"table of this version, so what {_listed(list(found))} moves is not known, and no sum "
        "with it is",
        expected=len(costs),
        found=len(costs) - len(found),
        unit="ops",
        scopes=(
            *(Scope(question, figures, op=op) for op in found for question, figures in _OF_OPS),
            Scope("roofline", ("roofline_time",)),
        ),
    )


def _types(program: Program, op: Op) -> tuple[str, ...]:
    """Unknown types of what an op reads and writes, a fusion's parameters included."""
    near = [op, *(program.ops[name] for name in op.operands if name in program.ops)]
    near += program.interior(op)
    return tuple(dict.fromkeys(t for each in near for t in unknown_types(each.shape)))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"
