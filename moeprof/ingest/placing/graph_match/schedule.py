"""Question: in which order does a module run what runs kernels, and which share a kernel?

The schedule of the entry computation, with the computations of loops, branches, calls and async
ops put in the place of their callers. A place in this list is called a slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.hlo.program import Op, Program
from moeprof.ingest.placing.graph_match.kinds import INSTRUCTIONS, instruction_kind

Ints = npt.NDArray[np.int64]

_RUNS_NOTHING = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain"}
    | {"opt-barrier", "optimization-barrier", "add-dependency", "async-update"}
)
_CONTAINERS = frozenset({"while", "conditional", "call", "async-start"})
_NOT_A_NAME = re.compile(r"\W")


@dataclass(frozen=True)
class Schedule:
    """Slots of a module, in order; all arrays have one entry per slot.

    ``kinds`` index `INSTRUCTIONS`. Slots with equal ``bodies`` share a kernel. A slot's innermost
    loop spans [``loop_starts``, ``loop_ends``), the whole list where it is in none.
    ``is_ordered`` says whether the program carries its schedule: else order tells nothing.
    """

    ops: tuple[str, ...]
    kinds: Ints
    bodies: Ints
    loop_starts: Ints
    loop_ends: Ints
    slot_of_op: dict[str, int]
    slot_of_name: dict[str, int]
    is_ordered: bool


def read_schedule(program: Program) -> Schedule:
    """`Schedule` of a program.

    Where it does not carry the order of its instructions, that in which they are written stands in.
    """
    rows = program.members
    opcodes = {name: frozenset(op.opcode for op in inside) for name, inside in rows.items()}
    is_ordered = any(op.schedule >= 0 for op in program.ops.values())
    whole = _whole(rows, is_ordered)
    slots = whole.slots
    starts, ends = np.zeros(len(slots), np.int64), np.full(len(slots), len(slots), np.int64)
    for start, end in reversed(whole.loops):  # the inner ones last
        starts[start:end], ends[start:end] = start, end
    kinds = [
        instruction_kind(
            op.opcode,
            op.target,
            op.attributes.details_text,
            frozenset().union(*(opcodes.get(name, frozenset()) for name in op.called)),
        )
        for op in slots
    ]
    return Schedule(
        ops=tuple(op.name for op in slots),
        kinds=np.array([INSTRUCTIONS.index(kind) for kind in kinds], np.int64),
        bodies=np.array(body_codes(rows, slots), np.int64),
        loop_starts=starts,
        loop_ends=ends,
        slot_of_op={op.name: slot for slot, op in enumerate(slots)},
        slot_of_name=_slot_of_name(slots, rows),
        is_ordered=is_ordered,
    )


def _slot_of_name(slots: list[Op], rows: Mapping[str, list[Op]]) -> dict[str, int]:
    """Slot by the name of its kernel, which may be that of an instruction fused into it."""
    found: dict[str, int] = {}
    for slot, op in enumerate(slots):
        if op.opcode == "fusion":
            inner = (fused.name for name in op.called for fused in rows.get(name, []))
            found.update((kernel_name(name), slot) for name in inner)
    found.update((kernel_name(op.name), slot) for slot, op in enumerate(slots))
    return found


def kernel_name(op: str) -> str:
    """The name that the compiler gives the kernel of an instruction."""
    return _NOT_A_NAME.sub("_", op)


@dataclass(frozen=True)
class _Stretch:
    """What a computation runs, in order, and the spans of the loops in it, inner ones first."""

    slots: list[Op]
    loops: list[tuple[int, int]]

    def append(self, other: _Stretch) -> None:
        shift = len(self.slots)
        self.slots.extend(other.slots)
        self.loops.extend((start + shift, end + shift) for start, end in other.loops)


def _whole(rows: Mapping[str, list[Op]], is_ordered: bool) -> _Stretch:
    """The computations that nothing calls, one after the other, the others in their places."""
    known: dict[str, _Stretch] = {}
    for name, inside in rows.items():  # computations stand before their callers
        known[name] = _stretch(_in_schedule(inside) if is_ordered else inside, known)
    called = {name for inside in rows.values() for op in inside for name in op.called}
    whole = _Stretch([], [])
    for name in rows:
        if name not in called:
            whole.append(known[name])
    return whole


def _stretch(ops: list[Op], known: dict[str, _Stretch]) -> _Stretch:
    found = _Stretch([], [])
    for op in ops:
        if op.opcode in _CONTAINERS:
            start = len(found.slots)
            # A loop names its body first but runs its condition first.
            for name in op.called[:: -1 if op.opcode == "while" else 1]:
                found.append(known.pop(name, _Stretch([], [])))  # its slots exist once
            if op.opcode == "while":
                found.loops.append((start, len(found.slots)))
        elif op.opcode not in _RUNS_NOTHING and not op.opcode.endswith("-done"):
            found.slots.append(op)
    return found


def _in_schedule(ops: list[Op]) -> list[Op]:
    return sorted((op for op in ops if op.schedule >= 0), key=lambda op: op.schedule)


# Which fusions share one kernel?
#
# The compiler generates one kernel for fusions that compute the same, and names it after the
# first. So a kernel's name stands for every fusion with the same body. What the table does not
# hold (constants' values, layouts) can only make the groups larger than the compiler's.


def body_codes(by_computation: Mapping[str, list[Op]], ops: Iterable[Op]) -> list[int]:
    """A code (0, 1, …) for each of `ops`: equal for fusions with equal bodies, else its own.

    `by_computation` has all instructions of the module, in the order of the program: operands
    before their users, computations before their callers.
    """
    bodies: dict[str, int] = {}
    known: dict[object, int] = {}
    for name, inside in by_computation.items():
        bodies[name] = known.setdefault(_body(inside, bodies), len(known))
    codes: dict[object, int] = {}
    found = []
    for op in ops:
        key: object = op.name
        if op.opcode == "fusion" and op.called:
            inner = (bodies.get(name, -1) for name in op.called)
            key = (op.shape, op.attributes.details_text, *inner)
        found.append(codes.setdefault(key, len(codes)))
    return found


def _body(ops: list[Op], bodies: dict[str, int]) -> tuple[object, ...]:
    """What a computation consists of, its instructions known by their places alone."""
    places: dict[str, int] = {}
    parts: list[object] = []
    for op in ops:
        read = tuple(places.get(operand, -1) for operand in op.operands)
        inner = tuple(bodies.get(name, -1) for name in op.called)
        said = op.attributes.details_text
        parts.append((op.opcode, op.shape, said, op.parameter, read, inner))
        places[op.name] = len(places)
    return tuple(parts)
