"""Question: which devices of a mesh form a group along some of its axes?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
