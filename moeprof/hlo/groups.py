"""Groups of devices that take part in a collective together, as values and as text."""

from __future__ import annotations

import functools
import re

import numpy as np
import numpy.typing as npt

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
