"""Question: which buffers does a buffer assignment hold that was written as text?

The compiler writes ``…buffer-assignment.txt`` (allocations and the values in them), in newer
versions ``…buffer-assignment-values.txt`` (the instruction that makes each value) and
``…live-range.txt`` beside it; older ones put all into the first file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moeprof.hlo.instruction import Instruction
from moeprof.hlo.shape import Shape, parse_shape
from moeprof.ingest.dump.instruction_text import parse_instruction
from moeprof.ingest.hlo.buffer_assignment import Buffer, MemoryTotals, Piece, totals_of_pieces

_ALLOCATION = re.compile(
    r"allocation (\d+)(?:: (?:0x[0-9a-f]+, )?size (\d+))(?:, color (\d+))?(.*)"
)
_VALUE = re.compile(
    r"\s+(?:value: )?<(\d+) ([\w.\-]+?)(?:\{([\d,]*)\})? @\d+> "
    r"\(size=(\d+),\s?offset=(\d+)\): (.*)"
)
_RANGE = re.compile(r"\s+([\w.\-]+)\{([\d,]*)\}:(\d+)-(\d+)\s*")
_FROM = re.compile(r"\s*from instruction: (.*)")
_KINDS = ("thread-local", "parameter", "constant", "maybe-live-out")
_NAMES = {"maybe-live-out": "output"}
MARK = "BufferAssignment:"


@dataclass(frozen=True)
class Allocation:
    """One allocation: its size, and what the compiler says it is (words of `_KINDS`)."""

    index: int
    size_bytes: int
    color: int
    words: frozenset[str]

    @property
    def kind(self) -> str:
        """As `BUFFERS` names it; ``temp`` for none of the kinds."""
        word = next((word for word in _KINDS if word in self.words), "temp")
        return _NAMES.get(word, word)


@dataclass(frozen=True)
class Value:
    """A value that lies in an allocation."""

    id: int
    op: str
    shape_index: str
    size_bytes: int
    offset_bytes: int
    shape: Shape
    allocation: Allocation


@dataclass
class Assignment:
    """Everything that the texts of one program tell. ``lives`` are (from, to) by op and index."""

    allocations: list[Allocation] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    instructions: dict[str, Instruction] = field(default_factory=dict)
    lives: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


def parse_assignment(texts: Sequence[str]) -> Assignment:
    """Read the texts of one program, in any order; lines of other kinds are passed over."""
    found = Assignment()
    for text in texts:
        allocation: Allocation | None = None
        for line in text.splitlines():
            if head := _ALLOCATION.match(line):
                allocation = _allocation(head)
                found.allocations.append(allocation)
            elif allocation is not None and (value := _VALUE.match(line)):
                found.values.append(_value(value, allocation))
            elif made := _FROM.match(line):
                instruction = parse_instruction(made[1])
                if instruction is not None:
                    found.instructions.setdefault(instruction.name, instruction)
            elif life := _RANGE.fullmatch(line):
                key = (life[1], life[2].replace(",", "."))
                found.lives[key] = (int(life[3]), int(life[4]))
    return found


def totals_of(assignment: Assignment) -> MemoryTotals:
    """Totals as the compiler counts them; a parameter that is a result too is aliased."""
    return totals_of_pieces([_piece(part) for part in assignment.allocations])


def _piece(part: Allocation) -> Piece:
    is_parameter, is_output = "parameter" in part.words, "maybe-live-out" in part.words
    return Piece(
        size_bytes=part.size_bytes,
        color=part.color,
        is_parameter=is_parameter,
        is_output=is_output,
        is_aliased=is_parameter and is_output,
        is_constant="constant" in part.words,
        is_temp=part.kind == "temp",
    )


def buffers_of(assignment: Assignment) -> list[Buffer]:
    """The values as rows of `BUFFERS`.

    Without live ranges nobody knows which of the values that share a place live together: of those
    the largest count to the peak, so that it is at most the size of the allocation. A parameter
    counts once: a result that reuses its place lies there after it.
    """
    lives, values = assignment.lives, assignment.values
    chosen = set(_largest([v for v in values if not lives or v.allocation.kind == "parameter"]))
    return [_buffer(value, lives, value.id in chosen) for value in values]


def _buffer(value: Value, lives: Mapping[tuple[str, str], tuple[int, int]], chosen: bool) -> Buffer:
    home = value.allocation
    life = (-1, -1)
    if home.kind == "temp":
        known = lives.get((value.op, value.shape_index))
        is_guessed = chosen and not lives
        life = (known[0], known[1] + 1) if known else (0, 1) if is_guessed else (-1, -1)
    return Buffer(
        id=value.id,
        op=value.op,
        shape_index=value.shape_index,
        size_bytes=value.size_bytes,
        allocation=home.index,
        offset_bytes=value.offset_bytes,
        kind=home.kind,
        color=home.color,
        trace=0 if life[0] >= 0 else -1,
        live_from=life[0],
        live_to=life[1],
        is_at_peak=(home.kind == "parameter" and chosen) or life[0] >= 0,
    )


def _largest(values: Sequence[Value]) -> Iterator[int]:
    """Ids of values that overlap no larger one of their allocation."""
    taken: dict[int, list[tuple[int, int]]] = {}
    for value in sorted(values, key=lambda value: (-value.size_bytes, value.id)):
        start, end = value.offset_bytes, value.offset_bytes + value.size_bytes
        places = taken.setdefault(value.allocation.index, [])
        if all(end <= low or start >= high for low, high in places):
            places.append((start, end))
            yield value.id


def _allocation(head: re.Match[str]) -> Allocation:
    words = frozenset(word for word in _KINDS if re.search(rf"\b{word}\b", _outside(head[4])))
    return Allocation(int(head[1]), int(head[2]), int(head[3] or 0), words)


def _outside(text: str) -> str:
    """The text without shapes, which stand between bars."""
    return re.sub(r"\|[^|]*\|", "", text)


def _value(found: re.Match[str], allocation: Allocation) -> Value:
    return Value(
        id=int(found[1]),
        op=found[2],
        shape_index=(found[3] or "").replace(",", "."),
        size_bytes=int(found[4]),
        offset_bytes=int(found[5]),
        shape=parse_shape(found[6]),
        allocation=allocation,
    )
