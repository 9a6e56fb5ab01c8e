"""Question: which function returns what a step does, and its routers' indices as well?

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
from moeprof.recording.choices.graph import stands_in_backward
from moeprof.recording.choices.outputs import Layout, layout_of, size_bytes, with_outputs
from moeprof.recording.choices.routers import CHOICES, NotRecorded, NotUnderstood, find

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
Static = tuple[frozenset[int], frozenset[str]]


@dataclass(frozen=True, eq=False)
class StandIn:
    """A step that also returns indices; ``layout`` reads them, ``bytes_per_call`` is their size.

    ``takes`` describes the arguments that it was traced for, and no others; ``scored_by`` are the
    places of the routers' weights among their leaves.
    """

    function: Any
    run: Callable[..., Sequence[Any]]
    takes: object
    static: Static
    results: Any
    layout: Layout
    chosen: int
    bytes_per_call: int
    is_training: bool
    scored_by: tuple[int, ...]

    def fits(self, arguments: Arguments) -> bool:
        """Whether it was traced for arguments like these."""
        return bool(_described(arguments, self.static) == self.takes)

    def leaves(self, arguments: Arguments) -> list[Any]:
        """The arrays among the arguments."""
        return _leaves(arguments, self.static)

    def __call__(self, leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        """What the step returns, and the routers' indices."""
        flat = self.run(*leaves)
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
    if are_traced(leaves):
        raise NotRecorded("none found: it is differentiated or mapped outside of jax.jit")
    closed, results = _traced(function, arguments, static, leaves)
    is_training = any(map(stands_in_backward, _equations(closed.jaxpr)))
    try:
        routers = find(closed)
        layout = layout_of(routers)
        rewritten = with_outputs(closed, [router.node for router in routers])
    except NotUnderstood as why:
        why.is_training = is_training
        raise
    scored_by = {node.slot for router in routers for node, _ in router.weight.arguments}
    return StandIn(
        function,
        core.jaxpr_as_fun(rewritten),
        _described(arguments, static),
        static,
        jax.tree.structure(results),
        layout,
        sum(router.chosen * router.runs for router in routers) // layout.layers,
        size_bytes(rewritten.out_avals[-len(routers) :]),
        is_training,
        tuple(sorted(scored_by)),
    )


def are_traced(leaves: Sequence[Any]) -> bool:
    """Whether arguments are those of a trace, and no arrays."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _traced(
    function: Any, arguments: Arguments, static: Static, leaves: Sequence[Any]
) -> tuple[Any, Any]:
    """The call as a jaxpr of its leaves, and the types of what it returns."""

    def call(*given: Any) -> Any:
        args, kwargs = _filled(arguments, static, given)
        return function(*args, **kwargs)

    closed, results = jax.make_jaxpr(call, return_shape=True)(*leaves)
    primitives = {eqn.primitive.name for eqn in _equations(closed.jaxpr)}
    if "jit" not in {eqn.primitive.name.replace("pjit", "jit") for eqn in closed.jaxpr.eqns}:
        raise NotRecorded("none found: its program is written in place (inline=True)")
    if not primitives & {*CHOICES, "sort"}:
        raise NotRecorded("none found: nothing in it chooses the largest")
    return closed, results


def _inner(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            one = getattr(one, "jaxpr", one)
            if hasattr(one, "eqns"):
                yield one


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr and of those inside it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _inner(eqn):
            yield from _equations(inner)


def _dynamic(arguments: Arguments, static: Static) -> Arguments:
    args, kwargs = arguments
    kept = tuple(None if place in static[0] else value for place, value in enumerate(args))
    return kept, {name: value for name, value in kwargs.items() if name not in static[1]}


def _leaves(arguments: Arguments, static: Static) -> list[Any]:
    return list(jax.tree.leaves(_dynamic(arguments, static)))


def _filled(arguments: Arguments, static: Static, given: Sequence[Any]) -> Arguments:
    """The arguments with `given` in the place of their arrays."""
    tree = jax.tree.structure(_dynamic(arguments, static))
    args, kwargs = jax.tree.unflatten(tree, given)
    every = zip(arguments[0], args, strict=True)
    return (
        tuple(own if place in static[0] else new for place, (own, new) in enumerate(every)),
        {**arguments[1], **kwargs},
    )


def _described(arguments: Arguments, static: Static) -> object:
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
