"""Question: how many tokens chose each expert of each layer, by the indices of a step's routers?

Layers are numbered in the order in which they run, those without a router left out. Of an array
that is spread over processes each counts its own shards; of equal shards one alone counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from moeprof.recording.choices.routers import NotRecorded, Router


@dataclass(frozen=True, eq=False)
class Indices:
    """How to read the array of one router: the layer of each place along its loops over layers.

    ``rows`` are numbers of layers [lengths of those loops], ``dims`` their places in the array.
    """

    rows: np.ndarray
    dims: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """How to read all arrays of a step."""

    arrays: tuple[Indices, ...]
    layers: int
    experts: int
    ranks: int


def layout_of(routers: Sequence[Router]) -> Layout:
    """Number the layers of routers.

    Raises:
        NotRecorded: layers have different numbers of experts, so that no one table holds them.
    """
    sizes = sorted({router.experts for router in routers})
    if len(sizes) > 1:
        raise NotRecorded(f"none found: layers have {' and '.join(map(str, sizes))} experts")
    places = {key: name for router in routers for key, name in _places(router)}
    numbers: dict[object, int] = {}
    for key in sorted(places):
        numbers.setdefault(places[key], len(numbers))
    ranks = {router.ranks for router in routers}
    return Layout(
        tuple(_indices(router, numbers) for router in routers),
        len(numbers),
        sizes[0],
        ranks.pop() if len(ranks) == 1 else 1,
    )


def _places(router: Router) -> Iterator[tuple[tuple[int, ...], object]]:
    """Where in the order of a step each layer of a router runs, and a name for the layer.

    A router that chooses twice has one name for both.
    """
    for at in _iterations(router):
        key: list[int] = []
        for scope in router.node.scope.chain():
            key.append(scope.index)
            if scope in router.layers:
                key.append(at[router.layers.index(scope)])
        yield (*key, router.node.index), (router.weight.arguments, at)


def _iterations(router: Router) -> Iterator[tuple[int, ...]]:
    return product(*(range(scope.eqn.params["length"]) for scope in router.layers))


def _indices(router: Router, numbers: dict[object, int]) -> Indices:
    rows = [numbers[router.weight.arguments, at] for at in _iterations(router)]
    loops = [scope for scope in router.node.scope.chain() if scope.kind == "loop"]
    lengths = [scope.eqn.params["length"] for scope in router.layers]
    dims = tuple(loops.index(scope) for scope in router.layers)
    return Indices(np.array(rows, np.int64).reshape(lengths), dims)


class Chosen:
    """Tokens per expert [layers, experts] of one step, counted when someone reads them."""

    def __init__(self, layout: Layout) -> None:
        """Of a step none of whose calls has been made."""
        self._layout = layout
        self._calls: list[Sequence[Any]] = []
        self.shape = (layout.layers, layout.experts)

    def add(self, arrays: Sequence[Any]) -> None:
        """A call of the step has returned these."""
        self._calls.append(arrays)

    def block_until_ready(self) -> None:
        """Wait until the devices have computed them."""
        for arrays in self._calls:
            for array in arrays:
                array.block_until_ready()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Counts over the shards that this process holds."""
        counts = np.zeros(self.shape, np.int64)
        for arrays in self._calls:
            for array, indices in zip(arrays, self._layout.arrays, strict=True):
                for part, start in _own_parts(array):
                    counts += self._counted(part, start, indices)
        return counts if dtype is None else counts.astype(dtype)

    def _counted(self, part: np.ndarray, start: list[int], indices: Indices) -> np.ndarray:
        layers, experts = self.shape
        within = tuple(slice(start[dim], start[dim] + part.shape[dim]) for dim in indices.dims)
        rows = indices.rows[within]
        shape = [part.shape[dim] if dim in indices.dims else 1 for dim in range(part.ndim)]
        places = rows.reshape(shape) * experts + part.astype(np.int64)
        counts: np.ndarray = np.bincount(places.reshape(-1), minlength=layers * experts)
        return counts.reshape(self.shape)


def _own_parts(array: Any) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Distinct shards of an array that this process holds, each with the index it starts at."""
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield np.asarray(shard.data), [piece.start or 0 for piece in shard.index]


def size_bytes(avals: Sequence[Any]) -> int:
    """Bytes of arrays of these types, all shards together."""
    return sum(prod(aval.shape) * aval.dtype.itemsize for aval in avals)
