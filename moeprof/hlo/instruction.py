"""One instruction of a compiled program, as a value and as a row of `HLO_OPS`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from moeprof.hlo.attributes import NO_ATTRIBUTES, Attributes, attributes_text, parse_attributes
from moeprof.hlo.groups import Groups, groups_text, parse_groups
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


def instructions_of(rows: pd.DataFrame) -> list[Instruction]:
    """The instructions that the rows are, in their order; a column that is not there is unknown."""
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


def _column(rows: pd.DataFrame, name: str, unknown: object) -> list[Any]:
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
