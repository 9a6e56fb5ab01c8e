"""Question: what do a trace's events tell of instructions, where no program was kept?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.hlo.instruction import Instruction
from moeprof.hlo.shape import Shape
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.planes.record import distinct
from moeprof.ingest.xspace.space import Int64s

_ENTRY = "unknown"
_COLLECTIVE = re.compile(
    r"(all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute|ragged-all-to-all)"
    r"(-start|-done)?"
)


@dataclass(frozen=True)
class NamedOp:
    """An op, the scope path that its events carry, and the op that it was seen inside of."""

    op: str
    op_name: str
    caller: str = ""


def program_of(name: str, ops: Sequence[NamedOp]) -> Program:
    """A program whose instructions are known by name alone: no shape, operand or buffer.

    Of opcodes only those of collectives are told, by the names that XLA gives them, and those of
    ops that were seen to call others, each of which has one computation of what it calls.
    """
    computations = {op: f"computation.{n}" for n, op in enumerate({o.caller: 0 for o in ops}) if op}
    instructions = tuple(
        _instruction(number, op, computations) for number, op in enumerate(ops, start=1)
    )
    return Program.known(name, _ENTRY, instructions)


def _opcode(op: str, *, is_caller: bool) -> str:
    if is_caller:
        return next((code for code in ("while", "conditional") if op.startswith(code)), "call")
    found = _COLLECTIVE.match(op)
    return found.group() if found else ""


def _instruction(number: int, named: NamedOp, computations: Mapping[str, str]) -> Instruction:
    called = computations.get(named.op)
    return Instruction(
        named.op,
        _opcode(named.op, is_caller=called is not None),
        Shape(""),
        called=(called,) if called else (),
        computation=computations.get(named.caller, _ENTRY),
        op_name=named.op_name,
        id=number,
    )


# Which op called which, as far as events inside one another on a thread show it?
#
# Without the program this is all that tells a loop from its body. Other pieces of the body may
# run on other threads: one that was seen inside its caller is enough to know that the op is
# called.

ROUNDING_NS = 1
"""Start and length are rounded each by itself, so an end may be so much too late."""


def callers(op: Int64s, track: Int64s, start_ns: Int64s, end_ns: Int64s) -> dict[int, int]:
    """Op -> the op that most of its pieces lie directly inside of; none calls itself in the end.

    `op` holds a number per piece, 0 where it is not known; pieces of one `track` do not cross.
    """
    seen: Counter[tuple[int, int]] = Counter()
    around: list[tuple[int, int]] = []  # op and end of the pieces that are open
    last_track = -1
    order = np.lexsort((-end_ns, start_ns, track))
    columns = (column[order].tolist() for column in (op, track, start_ns, end_ns))
    for mine, at, start, end in zip(*columns, strict=True):
        while around and (at != last_track or around[-1][1] <= start + ROUNDING_NS):
            around.pop()
        last_track = at
        if around and end <= around[-1][1] + ROUNDING_NS and mine != around[-1][0]:
            seen[mine, around[-1][0]] += 1
        around.append((mine, end))
    found: dict[int, int] = {}
    for (mine, caller), _ in seen.most_common():
        if mine and caller and mine not in found and not _is_above(mine, caller, found):
            found[mine] = caller
    return found


def _is_above(op: int, other: int, callers: dict[int, int]) -> bool:
    """Whether `op` called `other`, be it through others."""
    while other in callers:
        other = callers[other]
        if other == op:
            return True
    return False


# How many events of a track partly overlap another one, neither within it nor apart?
#
# Viewers drop such events without a word.


def partly_overlapping(process: Int64s, thread: Int64s, start_ns: Int64s, end_ns: Int64s) -> int:
    """Count events that begin inside an earlier event of their track and end after it.

    What the rounding of the format alone makes overlap does not count.
    """
    if not len(start_ns):
        return 0
    threads, at = distinct(thread)
    tracks = distinct(distinct(process)[1] * len(threads) + at)[1]
    order = np.lexsort((-end_ns, start_ns, tracks))
    start, end = start_ns[order], end_ns[order]
    # places of the ends among all: stamps since 1970 times many tracks pass 64 bits
    ends, place = np.unique(end, return_inverse=True)
    shift = tracks[order] * len(ends)
    reached = np.maximum.accumulate(place + shift)
    before = np.concatenate([[-1], reached[:-1]]) - shift  # below 0: of another track
    before_ns = ends[np.maximum(before, 0)]
    is_inside = (before >= 0) & (start < before_ns - ROUNDING_NS)
    return int((is_inside & (end > before_ns + ROUNDING_NS)).sum())
