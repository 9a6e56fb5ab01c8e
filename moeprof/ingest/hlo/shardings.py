"""Question: into how many parts is each dimension of a program's argument split over devices?

Reads every form that XLA writes (OpSharding in xla/xla_data.proto): replicated, tiles of an array
of devices, axes of a named mesh. A compiled program has the shapes of one device; with these it
says the whole argument's, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from moeprof.hlo.attributes import Numbers
from moeprof.hlo.instruction import MOST_DEVICES
from moeprof.ingest.xspace.wire import Message, Stretch, WireError, read_message, whole_numbers

_TYPE, _TILES, _LAST_IS_REPLICATED, _LAST_TILES, _NAMED = 1, 3, 6, 8, 14
_REPLICATED, _TILED = 0, 3  # OpSharding.Type
_MESH, _DIMS, _UNREDUCED, _MANUAL = 2, 3, 5, 7  # NamedShardingProto
_MESH_AXES, _AXIS_SIZE = 1, 2  # MeshProto, MeshAxis
_AXES = 1  # NamedShardingProto.DimensionSharding
_PLACE, _PART = 1, 2  # AxisRefProto
_PART_SIZE = 2  # AxisRefProto.SubAxis


def parse_splits(data: bytes, start: int, end: int, rank: int) -> Numbers:
    """Parts of each of `rank` dimensions; none where the bytes do not say it, or are damaged."""
    try:
        message = read_message(data, start, end, (_TILES, _LAST_TILES))
        named = message.stretches.get(_NAMED)
        parts = _named(data, named, rank) if named else _tiled(data, message, rank)
    except WireError:
        return ()
    are_some = len(parts) == rank and all(part > 0 for part in parts)
    return parts if are_some and prod(parts) <= MOST_DEVICES else ()


def _tiled(data: bytes, message: Message, rank: int) -> Numbers:
    """Parts by the tiles of an array of devices, whose last dimensions may be copies."""
    kind = message.numbers.get(_TYPE, _REPLICATED)
    tiles = whole_numbers(data, message.lists.get(_TILES))
    further = whole_numbers(data, message.lists.get(_LAST_TILES))
    if any(further):  # devices behind the tiles are no copies: manual, or not yet summed
        return ()
    copies = len(further) or int(bool(message.numbers.get(_LAST_IS_REPLICATED)))
    if kind == _REPLICATED:
        return (1,) * rank
    return tiles[:rank] if kind == _TILED and len(tiles) == rank + copies else ()


def _named(data: bytes, where: Stretch, rank: int) -> Numbers:
    """Parts by the axes of a mesh; a dimension that is not listed is whole."""
    message = read_message(data, *where, (_DIMS, _UNREDUCED, _MANUAL))
    mesh = message.stretches.get(_MESH)
    if mesh is None or message.lists.get(_UNREDUCED) or message.lists.get(_MANUAL):
        return ()
    axes = _inner(read_message(data, *mesh, (_MESH_AXES,)), _MESH_AXES)
    sizes = [read_message(data, *axis).numbers.get(_AXIS_SIZE, 0) for axis in axes]
    parts = tuple(_parts(data, dim, sizes) for dim in _inner(message, _DIMS))
    return (*parts, *(1,) * (rank - len(parts)))


def _parts(data: bytes, where: Stretch, sizes: Sequence[int]) -> int:
    """Parts of one dimension; 0 where an axis is none of the mesh's."""
    message = read_message(data, *where, (_AXES,))
    return prod(_axis_size(data, axis, sizes) for axis in _inner(message, _AXES))


def _axis_size(data: bytes, where: Stretch, sizes: Sequence[int]) -> int:
    message = read_message(data, *where)
    if _PART in message.stretches:
        return read_message(data, *message.stretches[_PART]).numbers.get(_PART_SIZE, 0)
    place = message.numbers.get(_PLACE, 0)
    return sizes[place] if place < len(sizes) else 0


def _inner(message: Message, number: int) -> list[Stretch]:
    return [part for part in message.lists.get(number, []) if part[1] >= 0]
