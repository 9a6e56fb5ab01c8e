"""Question: how does a traced step return its routers' indices as well, and how are they read?

`with_outputs` rewrites the jaxpr alone: no equation is added, so nothing is computed, sent or kept
that was not before, except that the chosen values outlive the step. A value inside a loop comes out
stacked along a new first dimension, one inside a mesh's shard as the shards one after another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import PartitionSpec

from moeprof.recording import jax_private
from moeprof.recording.choices.graph import INLINED, Node, Scope, differs_along
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


_shape: Any = jax.ShapeDtypeStruct  # without types in some versions of JAX
_spec: Any = PartitionSpec
Chain = tuple[int, ...]


def with_outputs(closed: Any, nodes: Sequence[Node]) -> Any:
    """A closed jaxpr that returns what `closed` does, and then each node's value.

    Raises:
        NotRecorded: a value cannot be returned from where it stands.
    """
    chains = [tuple(scope.index for scope in node.scope.chain()) for node in nodes]
    scopes = {
        chain[: depth + 1]: scope
        for node, chain in zip(nodes, chains, strict=True)
        for depth, scope in enumerate(node.scope.chain())
    }
    wanted: dict[Chain, list[Node]] = defaultdict(list)
    for node, chain in zip(nodes, chains, strict=True):
        wanted[chain].append(node)
    rewriter = _Rewriter(scopes, wanted)
    jaxpr, order = rewriter.rewritten(closed.jaxpr, ())
    places = [order.index(node) for node in nodes]
    added = jaxpr.outvars[len(jaxpr.outvars) - len(order) :]
    own = jaxpr.outvars[: len(jaxpr.outvars) - len(order)]
    jaxpr = _with(jaxpr, outvars=[*own, *(added[place] for place in places)])
    return core.ClosedJaxpr(jaxpr, closed.consts)


class _Rewriter:
    """Rewrites the jaxprs on the way to some values, innermost first."""

    def __init__(self, scopes: dict[Chain, Scope], wanted: dict[Chain, list[Node]]) -> None:
        self._scopes = scopes
        self._wanted = wanted

    def rewritten(self, jaxpr: Any, chain: Chain) -> tuple[Any, list[Node]]:
        """`jaxpr` with more outputs, and which values these are."""
        eqns = list(jaxpr.eqns)
        added: list[Any] = []
        order: list[Node] = []
        for inner in sorted(one for one in self._scopes if one[:-1] == chain):
            eqn, results, nodes = self._around(eqns[inner[-1]], inner)
            eqns[inner[-1]] = eqn
            added += results
            order += nodes
        for node in self._wanted.get(chain, ()):
            eqn, result = _kept(eqns[node.index], node.slot)
            eqns[node.index] = eqn
            added.append(result)
            order.append(node)
        return _with(jaxpr, eqns=eqns, outvars=[*jaxpr.outvars, *added]), order

    def _around(self, eqn: Any, chain: Chain) -> tuple[Any, list[Any], list[Node]]:
        """An equation whose function returns more; its new results."""
        scope = self._scopes[chain]
        key = next(key for key in INLINED if key in eqn.params)
        body = eqn.params[key]
        inner, nodes = self.rewritten(getattr(body, "jaxpr", body), chain)
        new = inner.outvars[len(inner.outvars) - len(nodes) :]
        is_closed = hasattr(body, "jaxpr")
        params = {**eqn.params, key: core.ClosedJaxpr(inner, body.consts) if is_closed else inner}
        avals = [var.aval for var in new]
        if scope.kind == "loop":
            length = eqn.params["length"]
            avals = [core.unmapped_aval(length, 0, aval) for aval in avals]
            params = jax_private.with_stacked_results(params, len(nodes))
        elif scope.kind == "mesh":
            avals = _across(eqn, params, scope, nodes, avals)
        elif eqn.primitive.name in ("jit", "pjit"):
            count = len(nodes)
            params["out_shardings"] = (*params["out_shardings"], *_unspecified(count))
            params["out_layouts"] = (*params["out_layouts"], *[None] * count)
        elif eqn.primitive.name.startswith("custom_"):
            return _called(eqn, params[key], nodes)
        results = [jax_private.new_variable(aval) for aval in avals]
        return eqn.replace(params=params, outvars=[*eqn.outvars, *results]), results, nodes


def _called(eqn: Any, body: Any, nodes: list[Node]) -> tuple[Any, list[Any], list[Node]]:
    """A function with a derivative of its own, called plainly: none is taken any more."""
    traced = jax.make_jaxpr(jax.jit(core.jaxpr_as_fun(body)))(
        *(_shape(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars)
    )
    (call,) = traced.jaxpr.eqns
    results = [jax_private.new_variable(var.aval) for var in body.jaxpr.outvars[-len(nodes) :]]
    new = eqn.replace(
        primitive=call.primitive, params=call.params, outvars=[*eqn.outvars, *results]
    )
    return new, results, nodes


def _unspecified(count: int) -> list[Any]:
    return [jax_private.unspecified_sharding()] * count


def _kept(eqn: Any, slot: int) -> tuple[Any, Any]:
    """An equation and its output of a number, which the program may have dropped."""
    var = eqn.outvars[slot]
    if type(var).__name__ != "DropVar":
        return eqn, var
    var = jax_private.new_variable(var.aval)
    outvars = [*eqn.outvars[:slot], var, *eqn.outvars[slot + 1 :]]
    return eqn.replace(outvars=outvars), var


def _across(
    eqn: Any, params: dict[str, Any], scope: Scope, nodes: list[Node], avals: list[Any]
) -> list[Any]:
    """Types of what shards return, put one after another along their first dimension of tokens."""
    mesh = params["mesh"]
    specs, wholes = [], []
    for node, aval in zip(nodes, avals, strict=True):
        chain = node.scope.chain()
        loops = sum(one.kind == "loop" for one in chain[chain.index(scope) + 1 :])
        axes = differs_along(node, scope)
        names = [name for name in mesh.axis_names if name in axes]
        if names and len(aval.shape) <= loops:
            raise NotRecorded("none found: a router of single tokens stands in a mesh's shard")
        specs.append(_spec(*[None] * loops, tuple(names)) if names else _spec())
        shape = list(aval.shape)
        for name in names:
            shape[loops] *= mesh.shape[name]
        wholes.append(jax.core.ShapedArray(tuple(shape), aval.dtype))
    params["out_specs"] = (*params["out_specs"], *specs)
    return wholes


def _with(jaxpr: Any, **changes: Any) -> Any:
    """`jaxpr` changed; names of its results, which are no longer as many, are left out."""
    debug = getattr(jaxpr, "debug_info", None)
    if debug is not None and hasattr(debug, "_replace"):
        changes["debug_info"] = debug._replace(result_paths=None)
    return jaxpr.replace(**changes)


def size_text(count: float) -> str:
    """A number of bytes, as one reads it."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
