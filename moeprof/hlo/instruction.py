"""One instruction of a compiled program: a value, with its groups and source lines, and a row."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from moeprof.columns.table import Given, Table
from moeprof.hlo.attributes import NO_ATTRIBUTES, Attributes, attributes_text, parse_attributes
from moeprof.hlo.shape import Shape, laid_out

NO_SHAPE = Shape("", unread="")


class Instruction(NamedTuple):
    """One HLO instruction; operands and called computations are named.

    A tuple, since a program has tens of thousands. Numbers that an instruction lacks are -1, texts
    empty. ``size_bytes`` is the size of all parts of its ``result``; ``groups`` is empty where all
    devices take part; ``pairs`` are (source, target) of a permutation; ``async_pair`` ends or
    began the same work, which is ``async_opcode``; ``config`` is the backend's configuration, cut
    where it is long; ``schedule`` the place in its computation's order.
    """

    name: str
    opcode: str
    result: Shape = NO_SHAPE
    operands: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    attributes: Attributes = NO_ATTRIBUTES
    computation: str = ""
    is_root: bool = False
    size_bytes: int = -1
    op_name: str = ""
    frames: Frames = ()
    target: str = ""
    config: str = ""
    groups: Groups = ()
    parameter: int = -1
    trip_count: int = -1
    id: int = -1
    schedule: int = -1
    channel_id: int = -1
    uses_global_ids: bool = False
    pairs: Groups = ()
    async_pair: str = ""
    async_opcode: str = ""
    api_version: str = ""

    @property
    def shape(self) -> str:
        """The text of its result: ``f32[8,128]``, tuples in brackets."""
        return self.result.text

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions of an array result; of a tuple's first part."""
        return self.result.first.dims

    @property
    def dtype(self) -> str:
        """Element type; of a tuple's first part."""
        return self.result.first.dtype

    @property
    def details(self) -> Mapping[str, str]:
        """Its attributes as texts, by the keys of column ``details`` of `HLO_OPS`."""
        return self.attributes.details

    @property
    def primitive(self) -> str:
        """Last element of the op_name: the JAX primitive, as far as it survived."""
        return self.op_name.rpartition("/")[2].rstrip(")")

    @property
    def group_size(self) -> int:
        """Devices in the first group of a collective; 0 where it names none."""
        return len(self.groups[0]) if self.groups else 0

    def of_either(self, result: Shape) -> Instruction:
        """The same where it may result in another shape: without a size where that differs."""
        if result.text == self.result.text:
            return self
        return self._replace(result=NO_SHAPE, size_bytes=-1, operands=())

    @property
    def base_opcode(self) -> str:
        """Opcode without the ``-start`` or ``-done`` of its asynchronous halves."""
        return self.opcode.removesuffix("-start").removesuffix("-done")


# Lines of the user's program that led to an instruction, as values and as text.


class Frame(NamedTuple):
    """One line of the user's program that led to an instruction."""

    file: str
    line: int
    function: str


Frames = tuple[Frame, ...]
"""Innermost first."""


def frames_text(frames: Iterable[Frame]) -> str:
    """``file:line:function`` per line."""
    return "\n".join(f"{file}:{line}:{function}" for file, line, function in frames)


@functools.lru_cache(maxsize=1 << 13)
def parse_frames(text: str) -> Frames:
    """What `frames_text` wrote."""
    return tuple(map(_frame, text.splitlines()))


def _frame(line: str) -> Frame:
    place, _, function = line.rpartition(":")
    file, _, number = place.rpartition(":")
    return Frame(file, int(number) if number.isdecimal() and len(number) < 20 else 0, function)


# Instructions as rows: the columns of `HLO_OPS` written from them and read back.
#
# The table is how programs are kept with a trace, so what is read back is what was written.

Columns = dict[str, Sequence[object]]
T = TypeVar("T")

_PLAIN = {
    **{"name": "op", "opcode": "opcode", "computation": "computation", "is_root": "is_root"},
    **{"size_bytes": "size_bytes", "op_name": "op_name", "target": "custom_call_target"},
    **{"config": "backend_config", "parameter": "parameter", "trip_count": "trip_count"},
    **{"id": "id", "schedule": "schedule", "channel_id": "channel_id"},
    **{"uses_global_ids": "uses_global_ids", "async_pair": "async_pair"},
    **{"async_opcode": "async_opcode", "api_version": "api_version"},
}
"""Field of an instruction -> the column that holds the same."""


def instructions_of(rows: Given) -> list[Instruction]:
    """The instructions that the rows are, in their order; a column that is not there is unknown."""
    rows = Table.of(rows)
    texts = {name: _column(rows, name, "") for name in ("shape", "details", "attributes")}
    results, attributes = _results(*texts.values())
    columns: dict[str, Sequence[object]] = {
        field: _column(rows, column, Instruction._field_defaults.get(field, ""))
        for field, column in _PLAIN.items()
    }
    columns |= {
        "result": results,
        "attributes": attributes,
        "operands": [tuple(text.split()) if text else () for text in _column(rows, "operands", "")],
        "called": [tuple(text.split()) if text else () for text in _column(rows, "called", "")],
        "frames": list(map(parse_frames, _column(rows, "frames", ""))),
        "groups": _groups(_column(rows, "replica_groups", "")),
        "pairs": _groups(_column(rows, "source_target_pairs", "")),
    }
    ordered = (columns[field] for field in Instruction._fields)
    return list(map(Instruction._make, zip(*ordered, strict=True)))


def columns_of(items: Sequence[Instruction]) -> Columns:
    """The columns of `HLO_OPS` but ``module``, an entry per instruction."""
    fields = zip(*items, strict=True) if items else ((),) * len(Instruction._fields)
    by_field = dict(zip(Instruction._fields, fields, strict=True))
    columns: Columns = {column: by_field[field] for field, column in _PLAIN.items()}
    columns["shape"] = [item.result.text for item in items]
    pairs = [(item.attributes, item.result) for item in items]
    columns["details"] = [attributes.details_text for attributes, _ in pairs]
    columns["attributes"] = [attributes_text(*pair) for pair in pairs]
    columns["fusion_kind"] = [attributes.fusion_kind for attributes, _ in pairs]
    columns["operands"] = [" ".join(item.operands) for item in items]
    columns["called"] = [" ".join(item.called) for item in items]
    columns["frames"] = _once(frames_text, [item.frames for item in items])
    columns["replica_groups"] = _once(groups_text, [item.groups for item in items])
    columns["source_target_pairs"] = _once(groups_text, [item.pairs for item in items])
    return columns


def _column(rows: Table, name: str, unknown: object) -> list[Any]:
    return rows[name].tolist() if name in rows else [unknown] * len(rows)


def _results(
    shapes: Sequence[str], details: Sequence[str], attributes: Sequence[str]
) -> tuple[list[Shape], list[Attributes]]:
    """Result and attributes of each row; rows with the same texts share theirs."""
    known: dict[tuple[str, str, str], tuple[Shape, Attributes]] = {}
    results: list[Shape] = []
    found: list[Attributes] = []
    for texts in zip(shapes, details, attributes, strict=True):
        pair = known.get(texts)
        if pair is None:
            pair = known[texts] = _read(*texts)
        results.append(pair[0])
        found.append(pair[1])
    return results, found


def _read(shape: str, details: str, attributes: str) -> tuple[Shape, Attributes]:
    if not details and not attributes:
        return laid_out(shape, "", ""), NO_ATTRIBUTES
    found, layout, space = parse_attributes(details, attributes)
    return laid_out(shape, layout, space), found


def _groups(texts: Sequence[str]) -> list[Groups]:
    return [parse_groups(text) if text else () for text in texts]


def _once(text_of: Callable[[T], str], values: Sequence[T]) -> list[str]:
    """Text of each; instructions that share an object share its text."""
    texts = {id(value): value for value in values}
    by_id = {key: text_of(value) for key, value in texts.items()}
    return [by_id[id(value)] for value in values]


# Groups of devices that take part in a collective together, as values and as text.

Groups = tuple[tuple[int, ...], ...]
"""Device ids of each group; of a permutation the pairs (source, target)."""

NOT_READ: Groups = ((), ())
"""Groups of a text in a form that is not known."""

MOST_DEVICES = 1 << 17  # beyond any machine there is; a larger claim is a damaged file
_NOT_READ_TEXT = "unknown"
_IOTA = re.compile(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_GROUP = re.compile(r"\{([\d,\s]+)\}")


def groups_text(groups: Groups) -> str:
    """``{{0,1},{2,3}}``, as HLO writes explicit groups; empty for none."""
    if not groups:
        return ""
    if groups == NOT_READ:
        return _NOT_READ_TEXT
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


@functools.lru_cache(maxsize=256)
def parse_groups(text: str) -> Groups:
    """The groups that a text names: none where all devices take part, else `NOT_READ`.

    Explicit groups, ``{{0,1},{2,3}}``, and ``[4,2]<=[2,4]T(1,0)``.
    """
    if not text.strip(" {}"):
        return ()
    if short := _IOTA.match(text.strip()):
        count, size = _numbers(f"{short[1]},{short[2]}")
        return iota_groups(count, size, _numbers(short[3]), _numbers(short[4] or "")) or NOT_READ
    return tuple(map(_numbers, _GROUP.findall(text))) or NOT_READ


def iota_groups(count: int, size: int, dims: tuple[int, ...], order: tuple[int, ...]) -> Groups:
    """``[count,size]<=[dims]T(order)``: number the devices, transpose, cut into groups.

    Returns no group where the numbers do not fit together.
    """
    ids = iota(count * size, dims, order)
    return () if ids is None else rows(ids.reshape(count, size))


def iota(
    devices: int, dims: tuple[int, ...], order: tuple[int, ...]
) -> npt.NDArray[np.int64] | None:
    """The numbers 0 to `devices` in the order of ``[dims]T(order)``; none where they do not fit."""
    shape = dims or (devices,)
    axes = order or tuple(range(len(shape)))
    if not 0 < devices <= MOST_DEVICES or min(shape) < 1 or product(shape) != devices:
        return None
    if len(shape) > 32 or sorted(axes) != list(range(len(shape))):
        return None
    return np.arange(devices, dtype=np.int64).reshape(shape).transpose(axes).reshape(-1)


def product(sizes: tuple[int, ...] | list[int]) -> int:
    """Product, cut off where it exceeds any machine: hostile sizes would grow without end."""
    total = 1
    for size in sizes:
        total *= size
        if not 0 < total <= MOST_DEVICES:
            return 0
    return total


def rows(groups: npt.NDArray[np.int64]) -> Groups:
    """The rows of an array as groups."""
    return tuple(map(tuple, groups.tolist()))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal())


# Calls that close a circle. No sound program has one; without them, whoever follows calls may rely
# on coming to an end.

_Calls = Mapping[str, Mapping[str, None]]
"""Computation -> those that its instructions call, in order."""


def without_call_circles(instructions: Iterable[Instruction]) -> dict[str, Instruction]:
    """Instructions by name, less the calls that close a circle; of a shared name the first."""
    ops: dict[str, Instruction] = {}
    calls: dict[str, dict[str, None]] = defaultdict(dict)
    for op in instructions:
        if op.name not in ops:
            ops[op.name] = op
            if op.called:
                calls[op.computation].update(dict.fromkeys(op.called))
    closing = _closing(calls)
    if not closing:
        return ops
    return {
        name: op._replace(
            called=tuple(c for c in op.called if (op.computation, c) not in closing),
        )
        for name, op in ops.items()
    }


def _closing(calls: _Calls) -> set[tuple[str, str]]:
    """Calls (caller, called) back to a computation that is being followed, from the entry on."""
    called = {name for names in calls.values() for name in names}
    found: set[tuple[str, str]] = set()
    done: set[str] = set()
    for start in sorted(calls, key=called.__contains__):  # what nothing calls first
        if start in done:
            continue
        # without recursion: a chain of calls may be longer than the stack
        todo, way = [(start, iter(calls[start]))], {start}
        while todo:
            name, following = todo[-1]
            target = next(following, None)
            if target is None:
                todo.pop()
                way.remove(name)
                done.add(name)
            elif target in way:
                found.add((name, target))
            elif target in calls and target not in done:
                way.add(target)
                todo.append((target, iter(calls[target])))
    return found
