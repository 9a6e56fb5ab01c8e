"""Question: how many times does a loop of a program go round?

XLA writes it into the backend config of the loop where it knows it. Else the pattern of a counted
loop is read: a start and a step that are constants, and a condition that compares the counter
with a constant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from moeprof.hlo.instruction import Instruction
from moeprof.ingest.xspace.wire import WireError, read_message

UNKNOWN = -1
_BODY, _CONDITION = 0, 1  # places in the computations that a loop calls
_MOST_JSON = 1 << 16
_MOST_HOPS = 256
_VIEWS = ("bitcast", "copy", "convert", "optimization-barrier", "reshape")
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_KNOWN_TRIP_COUNT, _N = 1, 1  # of WhileLoopBackendConfig (xla/xla_data.proto)


def written_trip_count(config: bytes) -> int:
    """What a WhileLoopBackendConfig says, as JSON or as protobuf; -1 where it says nothing."""
    if config[:1] == b"{":
        return _of_json(config)
    try:
        count = read_message(config, 0, len(config)).stretches.get(_KNOWN_TRIP_COUNT)
        if count is None:
            return UNKNOWN
        return _as_count(read_message(config, *count).numbers.get(_N, 0))
    except WireError:
        return UNKNOWN


def _of_json(config: bytes) -> int:
    try:
        found = json.loads(config) if len(config) <= _MOST_JSON else {}
        count = found.get("known_trip_count", found.get("knownTripCount"))
        return _as_count(int(count["n"])) if isinstance(count, dict) and count else UNKNOWN
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return UNKNOWN


def _as_count(value: int) -> int:
    return value if 0 <= value < 1 << 63 else UNKNOWN


@dataclass(frozen=True)
class _Place:
    """An instruction, seen from inside the fusions and calls that lead to it."""

    op: Instruction
    callers: tuple[Instruction, ...] = ()


@dataclass(frozen=True)
class LoopReader:
    """Reads counted loops. ``roots`` has the result of each computation by its name."""

    ops: Mapping[str, Instruction]
    roots: Mapping[str, Instruction] = field(default_factory=dict)

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> LoopReader:
        """Ready to read the loops of these instructions."""
        ops = {item.name: item for item in instructions}
        return cls(ops, {item.computation: item for item in ops.values() if item.is_root})

    def trip_count(self, loop: Instruction) -> int:
        """Rounds of a ``while``, by its pattern; -1 where it is none that can be counted."""
        if len(loop.called) <= _CONDITION or not loop.operands:
            return UNKNOWN
        test = self._result(loop.called[_CONDITION])
        if test is None or test.op.opcode != "compare" or len(test.op.operands) != 2:
            return UNKNOWN
        left, right = (self._operand(test, place) for place in (0, 1))
        direction = test.op.attributes.direction
        if self._counter(left) < 0:
            left, right, direction = right, left, _MIRRORED.get(direction, "")
        counter, bound = self._counter(left), self._constant(right)
        if counter < 0 or bound is None:
            return UNKNOWN
        start = self._start(loop, counter)
        step = self._step(loop.called[_BODY], counter)
        if start is None or not step:
            return UNKNOWN
        return _rounds(start, step, bound, direction)

    def _start(self, loop: Instruction, counter: int) -> int | None:
        state = self._at(self.ops.get(loop.operands[0]))
        if state is None or state.op.opcode != "tuple":
            return None
        return self._constant(self._operand(state, counter))

    def _step(self, body: str, counter: int) -> int | None:
        """What a round adds to the counter."""
        result = self._result(body)
        if result is None or result.op.opcode != "tuple":
            return None
        change = self._operand(result, counter)
        if change is None or change.op.opcode not in ("add", "subtract"):
            return None
        left, right = (self._operand(change, place) for place in (0, 1))
        if self._counter(left) != counter and change.op.opcode == "add":
            left, right = right, left
        step = self._constant(right)
        if self._counter(left) != counter or step is None:
            return None
        return step if change.op.opcode == "add" else -step

    def _counter(self, place: _Place | None) -> int:
        """The part of the loop's state that is read here, -1 for none."""
        if place is None or place.op.opcode != "get-tuple-element":
            return -1
        state = self._operand(place, 0)
        is_state = state is not None and state.op.opcode == "parameter" and not state.callers
        return place.op.attributes.tuple_index if is_state else -1

    def _constant(self, place: _Place | None) -> int | None:
        return None if place is None else place.op.attributes.constant

    def _result(self, computation: str) -> _Place | None:
        return self._at(self.roots.get(computation))

    def _operand(self, place: _Place, number: int) -> _Place | None:
        operands = place.op.operands
        return (
            self._at(self.ops.get(operands[number]), place.callers)
            if number < len(operands)
            else None
        )

    def _at(self, op: Instruction | None, callers: tuple[Instruction, ...] = ()) -> _Place | None:
        """What is computed here, behind views and inside fusions and calls."""
        for _ in range(_MOST_HOPS):
            if op is None:
                return None
            if op.opcode in _VIEWS and op.operands:
                op = self.ops.get(op.operands[0])
            elif op.opcode in ("fusion", "call") and op.called:
                callers, op = (*callers, op), self.roots.get(op.called[0])
            elif op.opcode == "parameter" and callers:
                caller, callers = callers[-1], callers[:-1]
                inside = 0 <= op.parameter < len(caller.operands)
                op = self.ops.get(caller.operands[op.parameter]) if inside else None
            else:
                return _Place(op, callers)
        return None


def _rounds(start: int, step: int, bound: int, direction: str) -> int:
    """Values of ``start, start + step, …`` before the first that fails the comparison."""
    if step < 0:
        return _rounds(-start, -step, -bound, _MIRRORED.get(direction, ""))
    if direction == "LT":
        return max(0, -((start - bound) // step))
    if direction == "LE":
        return max(0, (bound - start) // step + 1)
    if direction == "NE" and bound >= start and (bound - start) % step == 0:
        return (bound - start) // step
    fails_at_once = (direction == "GT" and start <= bound) or (direction == "GE" and start < bound)
    return 0 if fails_at_once else UNKNOWN
