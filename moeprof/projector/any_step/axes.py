"""Question: along which axes of a mesh do the devices of a collective lie?

A program counts its devices in the order of the mesh, the last axis fastest.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod

import numpy as np

from moeprof.hlo.instruction import Groups

UNKNOWN = ""


def axes_of_groups(groups: Groups, axes: Mapping[str, int]) -> str:
    """``fsdp``, or ``data × fsdp`` where groups run along both; empty where they fit no axes."""
    wanted = {frozenset(group) for group in groups}
    wide = [name for name, size in axes.items() if size > 1]
    for count in range(1, len(wide) + 1):
        for names in itertools.combinations(wide, count):
            if {frozenset(row) for row in _lines(axes, names)} == wanted:
                return " × ".join(names)
    return UNKNOWN


def axes_of_pairs(pairs: Groups, axes: Mapping[str, int]) -> str:
    """The axes along which the two devices of each pair differ; empty where there are no pairs."""
    devices = prod(axes.values())
    if not pairs or max(map(max, pairs)) >= devices:
        return UNKNOWN
    ends = np.array(pairs).T
    places = [np.unravel_index(end, tuple(axes.values())) for end in ends]
    moved = [np.any(source != target) for source, target in zip(*places, strict=True)]
    return " × ".join(name for name, is_moved in zip(axes, moved, strict=True) if is_moved)


def _lines(axes: Mapping[str, int], names: tuple[str, ...]) -> list[list[int]]:
    """The devices of each line along some of the axes."""
    ids = np.arange(prod(axes.values())).reshape(tuple(axes.values()))
    places = [list(axes).index(name) for name in names]
    moved = np.moveaxis(ids, places, range(-len(places), 0))
    lines: list[list[int]] = moved.reshape(-1, prod(axes[name] for name in names)).tolist()
    return lines
