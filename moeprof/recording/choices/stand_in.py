"""Question: which function runs in the place of a step, so that its routers' indices come out?

`stand_in_for` traces the step as it is called, with its static arguments, and binds the rewritten
jaxpr: JAX keeps in it what the step was jitted with, its name, shardings, donated arguments and
compiler options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from moeprof.recording import jax_private
from moeprof.recording.choices.counts import Layout, layout_of, size_bytes
from moeprof.recording.choices.graph import CALLS, stands_in_backward
from moeprof.recording.choices.outputs import with_outputs
from moeprof.recording.choices.routers import NotRecorded, find

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class StandIn:
    """A step that also returns indices; ``layout`` reads them, ``bytes_per_call`` is their size.

    ``takes`` describes the arguments that it was traced for, and no others.
    """

    run: Callable[..., Sequence[Any]]
    takes: object
    static: tuple[frozenset[int], frozenset[str]]
    results: Any
    layout: Layout
    chosen: int
    bytes_per_call: int
    is_training: bool

    def fits(self, arguments: Arguments) -> bool:
        """Whether it was traced for arguments like these."""
        return _described(arguments, self.static) == self.takes

    def __call__(self, arguments: Arguments) -> tuple[Any, list[Any]]:
        """What the step returns, and the routers' indices."""
        flat = self.run(*_leaves(arguments, self.static))
        count = self.results.num_leaves
        return jax.tree.unflatten(self.results, flat[:count]), list(flat[count:])


def stand_in_for(function: Any, arguments: Arguments) -> StandIn:
    """The stand-in of a jitted function for arguments such as these.

    Raises:
        NotRecorded: it has no routers, or not all of them are understood.
    """
    static = jax_private.static_arguments(function)
    if static is None:
        raise NotRecorded("none found: it is no function of jax.jit (compiled ahead, or of pmap)")
    leaves = _leaves(arguments, static)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise NotRecorded("none found: it is differentiated or mapped outside of jax.jit")

    def call(*given: Any) -> Any:
        args, kwargs = _filled(arguments, static, given)
        return function(*args, **kwargs)

    closed, results = jax.make_jaxpr(call, return_shape=True)(*leaves)
    primitives = set(_equations(closed.jaxpr))
    if "jit" not in {eqn.primitive.name.replace("pjit", "jit") for eqn in closed.jaxpr.eqns}:
        raise NotRecorded("none found: its program is written in place (inline=True)")
    if not primitives & {"top_k", "approx_top_k", "argmax", "sort"}:
        raise NotRecorded("none found: nothing in it chooses the largest")
    routers = find(closed)
    layout = layout_of(routers)
    rewritten = with_outputs(closed, [router.node for router in routers])
    return StandIn(
        core.jaxpr_as_fun(rewritten),
        _described(arguments, static),
        static,
        jax.tree.structure(results),
        layout,
        sum(router.chosen * router_layers(router) for router in routers) // layout.layers,
        size_bytes(rewritten.out_avals[-len(routers) :]),
        any(_is_backward(closed.jaxpr)),
    )


def router_layers(router: Any) -> int:
    """Layers that a router is of."""
    count = 1
    for scope in router.layers:
        count *= scope.eqn.params["length"]
    return count


def _inner(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            one = getattr(one, "jaxpr", one)
            if hasattr(one, "eqns"):
                yield one


def _equations(jaxpr: Any) -> Iterator[str]:
    """Primitives of a jaxpr and of those inside it."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in _inner(eqn):
            yield from _equations(inner)


def _is_backward(jaxpr: Any) -> Iterator[bool]:
    """Whether each equation is of a backward pass, functions that are called in place included."""
    for eqn in jaxpr.eqns:
        yield stands_in_backward(eqn)
        if eqn.primitive.name in CALLS | {"scan", "shard_map"}:
            for inner in _inner(eqn):
                yield from _is_backward(inner)


def _dynamic(arguments: Arguments, static: tuple[frozenset[int], frozenset[str]]) -> Arguments:
    args, kwargs = arguments
    kept = tuple(None if place in static[0] else value for place, value in enumerate(args))
    return kept, {name: value for name, value in kwargs.items() if name not in static[1]}


def _leaves(arguments: Arguments, static: tuple[frozenset[int], frozenset[str]]) -> list[Any]:
    leaves: list[Any] = jax.tree.leaves(_dynamic(arguments, static))
    return leaves


def _filled(
    arguments: Arguments, static: tuple[frozenset[int], frozenset[str]], given: Sequence[Any]
) -> Arguments:
    """The arguments with `given` in the place of their arrays."""
    tree = jax.tree.structure(_dynamic(arguments, static))
    args, kwargs = jax.tree.unflatten(tree, given)
    every = zip(arguments[0], args, strict=True)
    return (
        tuple(own if place in static[0] else new for place, (own, new) in enumerate(every)),
        {**arguments[1], **kwargs},
    )


def _described(arguments: Arguments, static: tuple[frozenset[int], frozenset[str]]) -> object:
    """What has to be equal for a program to be used again."""
    args, kwargs = arguments
    dynamic = _dynamic(arguments, static)
    shapes = [
        (getattr(leaf, "shape", type(leaf)), getattr(leaf, "dtype", None))
        for leaf in jax.tree.leaves(dynamic)
    ]
    fixed = [args[place] for place in sorted(static[0]) if place < len(args)]
    named = {name: kwargs[name] for name in sorted(static[1]) if name in kwargs}
    return jax.tree.structure(dynamic), shapes, fixed, named
