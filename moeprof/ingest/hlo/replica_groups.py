"""Question: which devices take part in a collective, and how is an argument split over devices?

Reads every form that XLA writes (xla/xla_data.proto): explicit groups, the collective device
list, the iota form ``[groups,size]<=[dims]T(perm)``, and named axes of a device mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from moeprof.hlo.attributes import Numbers
from moeprof.hlo.instruction import MOST_DEVICES, Groups, iota, iota_groups, product, rows
from moeprof.ingest.xspace.wire import Message, Stretch, WireError, read_message, whole_numbers

# Fields of HloInstructionProto that say it, and of the messages in them.
GROUPS, DEVICE_LIST, IOTA_LIST, MESH_LIST = 49, 87, 92, 93
_LIST_GROUPS, _LIST_IOTA = 1, 2
_IOTA_GROUPS, _IOTA_SIZE, _IOTA_DIMS, _IOTA_ORDER = 1, 2, 3, 4
_MESH, _MESH_AXES = 1, 2
_FIRST, _SECOND = 1, 2


def collective_groups(data: bytes, instruction: Message) -> Groups:
    """Groups of an HloInstructionProto read with `GROUPS` repeated; none where all take part.

    Also none where what is written does not fit together.

    Raises:
        WireError: the bytes are damaged.
    """
    stretches = instruction.stretches
    if IOTA_LIST in stretches:
        return parseiota(data, *stretches[IOTA_LIST])
    if MESH_LIST in stretches:
        return parse_mesh_axes(data, *stretches[MESH_LIST])
    if DEVICE_LIST in stretches and (groups := parse_device_list(data, *stretches[DEVICE_LIST])):
        return groups
    return _explicit(data, instruction.lists.get(GROUPS))


def parse_device_list(data: bytes, start: int, end: int) -> Groups:
    """A CollectiveDeviceListProto: explicit groups, else its iota list."""
    message = read_message(data, start, end, (_LIST_GROUPS,))
    groups = _explicit(data, message.lists.get(_LIST_GROUPS))
    if not groups and _LIST_IOTA in message.stretches:
        return parseiota(data, *message.stretches[_LIST_IOTA])
    return groups


def parseiota(data: bytes, start: int, end: int) -> Groups:
    """An IotaReplicaGroupListProto."""
    message = read_message(data, start, end, (_IOTA_DIMS, _IOTA_ORDER))
    return iota_groups(
        message.numbers.get(_IOTA_GROUPS, 0),
        message.numbers.get(_IOTA_SIZE, 0),
        whole_numbers(data, message.lists.get(_IOTA_DIMS)),
        whole_numbers(data, message.lists.get(_IOTA_ORDER)),
    )


def parse_mesh_axes(data: bytes, start: int, end: int) -> Groups:
    """A MeshAxesReplicaGroupListProto: devices that differ along the axes only form a group."""
    message = read_message(data, start, end, (_MESH_AXES,))
    if _MESH not in message.stretches:
        return ()
    axes_field, ids_field, iota_field = 1, 2, 3
    mesh = read_message(data, *message.stretches[_MESH], (axes_field, ids_field))
    sizes = [_pair(data, axis)[1] for axis in mesh.lists.get(axes_field, [])]
    devices = product(sizes)
    if not 0 < devices <= MOST_DEVICES:
        return ()
    ids: npt.NDArray[np.int64] | None
    if explicit := whole_numbers(data, mesh.lists.get(ids_field)):
        ids = np.array(explicit, dtype=np.int64) if len(explicit) == devices else None
    else:
        dims, order = _transform(data, mesh.stretches.get(iota_field))
        ids = iota(devices, dims, order)
    wanted = [_axis(data, axis) for axis in message.lists.get(_MESH_AXES, [])]
    groups = None if ids is None else mesh_groups(ids, sizes, wanted)
    return () if groups is None else rows(groups)


def _explicit(data: bytes, entries: list[Stretch] | None) -> Groups:
    return tuple(
        whole_numbers(data, read_message(data, *entry, (_FIRST,)).lists.get(_FIRST))
        for entry in entries or ()
        if entry[1] >= 0
    )


def _transform(data: bytes, where: Stretch | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if where is None:
        return (), ()
    message = read_message(data, *where, (_FIRST, _SECOND))
    return (
        whole_numbers(data, message.lists.get(_FIRST)),
        whole_numbers(data, message.lists.get(_SECOND)),
    )


def _axis(data: bytes, where: Stretch) -> MeshAxis:
    message = read_message(data, *where)
    part = message.stretches.get(_SECOND)
    return MeshAxis(message.numbers.get(_FIRST, 0), SubAxis(*_pair(data, part)) if part else None)


def _pair(data: bytes, where: Stretch) -> tuple[int, int]:
    numbers = read_message(data, *where).numbers
    return numbers.get(_FIRST, 0), numbers.get(_SECOND, 0)


# Which devices of a mesh form a group along some of its axes?


@dataclass(frozen=True)
class SubAxis:
    """A part of an axis: behind ``before`` positions of it, ``size`` positions (``(2)4``)."""

    before: int
    size: int


@dataclass(frozen=True)
class MeshAxis:
    """An axis of a mesh by its place, whole or a part of it."""

    place: int
    part: SubAxis | None = None


def mesh_groups(
    ids: npt.NDArray[np.int64], sizes: list[int], axes: list[MeshAxis]
) -> npt.NDArray[np.int64] | None:
    """Devices that differ along `axes` only, a row per group, or none where they do not fit.

    `ids` are the devices of the mesh in row-major order over `sizes`. Groups, and devices in a
    group, keep the order of the mesh, parts of one axis the order given. Where an axis is split
    ``a:(before)size``, it counts as three: ``[before, size, rest]`` (Shardy, "Axis
    representation: sub-axes").
    """
    shape: list[int] = []
    grouped: list[int] = []
    for place, size in enumerate(sizes):
        split = _split(size, [axis.part for axis in axes if axis.place == place])
        if split is None:
            return None
        dims, chosen = split
        grouped += [len(shape) + at for at in chosen]
        shape += dims
    if not grouped or len(shape) > 32 or any(axis.place >= len(sizes) for axis in axes):
        return None
    others = [at for at in range(len(shape)) if at not in grouped]
    per_group = int(np.prod([shape[at] for at in grouped]))
    return ids.reshape(shape).transpose([*others, *grouped]).reshape(-1, per_group)


def _split(size: int, parts: list[SubAxis | None]) -> tuple[list[int], list[int]] | None:
    """An axis cut into dimensions, and which of these are grouped, in the order of `parts`."""
    if not parts:
        return [size], []
    if parts == [None]:
        return [size], [0]
    named = [part for part in parts if part is not None]
    if len(named) != len(parts) or any(part.before < 1 or part.size < 1 for part in named):
        return None
    dims: list[int] = []
    place: dict[int, int] = {}
    done = 1
    for part in sorted(named, key=lambda part: part.before):
        if part.before % done or part.before < done:
            return None
        place[part.before] = len(dims) + 1
        dims += [part.before // done, part.size]
        done = part.before * part.size
    if size % done:
        return None
    return [*dims, size // done], [place[part.before] for part in named]


# Into how many parts is each dimension of a program's argument split over devices?
#
# Reads every form that XLA writes (OpSharding in xla/xla_data.proto): replicated, tiles of an array
# of devices, axes of a named mesh. A compiled program has the shapes of one device; with these it
# says the whole argument's, too.

_TYPE, _TILES, _LAST_IS_REPLICATED, _LAST_TILES, _NAMED = 1, 3, 6, 8, 14
_REPLICATED, _TILED = 0, 3  # OpSharding.Type
_NAMED_MESH, _DIMS, _UNREDUCED, _MANUAL = 2, 3, 5, 7  # NamedShardingProto
_AXES_OF_MESH, _AXIS_SIZE = 1, 2  # MeshProto, MeshAxis
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
    mesh = message.stretches.get(_NAMED_MESH)
    if mesh is None or message.lists.get(_UNREDUCED) or message.lists.get(_MANUAL):
        return ()
    axes = _inner(read_message(data, *mesh, (_AXES_OF_MESH,)), _AXES_OF_MESH)
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
