"""Question: how do values flow through a traced step, loops and nested functions included?

`graph_of` unfolds a jaxpr into one graph: what a function, a checkpoint or a mesh's shard computes
stands in it as if it were written in place, once for each call; a loop's body stands in it once,
between nodes that slice its stacked inputs, carry its state and stack its outputs.

`moeprof.hlo` has this for compiled programs, as a table of instructions read from files. Here it is
needed while training starts, of a jaxpr, whose equations must be found again to be changed: so each
node keeps its place, and neither pandas nor an analyzer is imported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from moeprof.recording import jax_private

Jaxpr = Any  # jax.extend.core.Jaxpr and its parts: private in some versions, untyped in others
Eqn = Any

INLINED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters under which an equation keeps the function that it calls in place."""
CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "remat", "remat2", "checkpoint"}
    | {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"}
)
EACH, CARRY, STACK, SHARD, WHOLE, BRANCH = "each", "carry", "stack", "shard", "whole", "branch"
"""Nodes at the edges of loops, meshes and branches; `SHARD` and `WHOLE` change a shape alone."""

_NAMES = """
add sub mul div max min neg sign abs sqrt rsqrt cbrt exp exp2 log log1p expm1 logistic tanh erf pow
integer_pow square convert_element_type reduce_precision stop_gradient copy copy_p select_n clamp
sharding_constraint mesh_cast reshard pvary pcast add_any is_finite floor ceil round sin cos name
optimization_barrier layout_constraint nextafter rem psum psum2 psum_invariant pmax pmin pbroadcast
real imag
"""
ELEMENTWISE = frozenset(_NAMES.split())
"""What leaves each element in its place."""
REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
)
Axes = tuple[int, ...]
Differing = dict[tuple["Node", "Scope"], set[str]]
SLOTTED = frozenset({"optimization_barrier", "psum", "psum2", "psum_invariant", "pmax", "pmin"})
"""Each output is made of the input of the same number alone."""
_SAME_EVERYWHERE = frozenset(
    {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant"}
)
_DIFFERENT = frozenset(
    {"axis_index", "reduce_scatter", "psum_scatter", "all_to_all", "ragged_all_to_all"}
)


@dataclass(eq=False, repr=False)
class Scope:
    """A nested computation: the equation it stands in, and where that equation stands.

    ``kind`` is ``call``, ``loop`` (a scan), ``while``, ``branch`` or ``mesh``; ``index`` counts
    equations of the scope around it. ``is_backward`` holds for all of a backward pass.
    """

    parent: Scope | None
    kind: str
    eqn: Eqn
    index: int
    is_backward: bool

    def chain(self) -> list[Scope]:
        """The scopes around its nodes, outermost first, itself last; the step is left out."""
        around: list[Scope] = []
        scope: Scope | None = self
        while scope is not None and scope.parent is not None:
            around.append(scope)
            scope = scope.parent
        return around[::-1]


@dataclass(eq=False, repr=False)
class Node:
    """One value: what makes it, of what, and the place of that equation.

    ``slot`` is its number among the outputs of the equation, ``of`` are the nodes it is made of.
    """

    primitive: str
    of: list[Node]
    aval: Any
    scope: Scope
    eqn: Eqn = None
    index: int = -1
    slot: int = 0
    is_backward: bool = False
    literal: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its dimensions; in a mesh's shard those of the shard."""
        return tuple(getattr(self.aval, "shape", ()))

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the equation."""
        return {} if self.eqn is None else self.eqn.params


@dataclass(repr=False)
class Graph:
    """All values of a step in the order they are computed, who uses them, and its arguments."""

    nodes: list[Node] = field(default_factory=list)
    users: dict[Node, list[Node]] = field(default_factory=lambda: defaultdict(list))
    arguments: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> Node:
        """Take a node in."""
        self.nodes.append(node)
        for source in node.of:
            self.users[source].append(node)
        return node

    def feed(self, node: Node, source: Node) -> None:
        """`node`, a loop's state, is made of `source` too."""
        node.of.append(source)
        self.users[source].append(node)


def graph_of(closed: Any) -> Graph:
    """The graph of a closed jaxpr."""
    graph = Graph()
    top = Scope(None, "step", None, -1, False)
    graph.arguments = [
        graph.add(Node("argument", [], var.aval, top, slot=slot))
        for slot, var in enumerate(closed.jaxpr.invars)
    ]
    _Walk(graph).closed(closed, graph.arguments, top)
    return graph


def stands_in_backward(eqn: Eqn) -> bool:
    """Whether the equation was made by transposing: JAX notes that in its name stack."""
    stack = getattr(getattr(eqn, "source_info", None), "name_stack", "")
    return "transpose(" in str(stack)


class _Walk:
    """Adds computations to a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def closed(self, closed: Any, given: Sequence[Node], scope: Scope) -> list[Node]:
        """Add a jaxpr with its constants; the nodes that it results in."""
        jaxpr = getattr(closed, "jaxpr", closed)
        known: dict[Any, Node] = {}
        for var in jaxpr.constvars:
            known[var] = self._graph.add(Node("constant", [], var.aval, scope))
        known.update(zip(jaxpr.invars, given, strict=True))
        for index, eqn in enumerate(jaxpr.eqns):
            found = [self._read(known, atom, scope) for atom in eqn.invars]
            known.update(zip(eqn.outvars, self._equation(eqn, index, found, scope), strict=True))
        return [self._read(known, atom, scope) for atom in jaxpr.outvars]

    def _read(self, known: dict[Any, Node], atom: Any, scope: Scope) -> Node:
        if hasattr(atom, "val"):
            return self._graph.add(Node("literal", [], atom.aval, scope, literal=atom.val))
        return known[atom]

    def _equation(self, eqn: Eqn, index: int, given: list[Node], scope: Scope) -> list[Node]:
        name = eqn.primitive.name
        is_backward = scope.is_backward or stands_in_backward(eqn)

        def inside(kind: str) -> Scope:
            return Scope(scope, kind, eqn, index, is_backward)

        body: Any = next((eqn.params[key] for key in INLINED if key in eqn.params), None)
        if name == "scan":
            return self._scan(eqn, given, inside("loop"))
        if name == "while":
            return self._while(eqn, given, inside("while"))
        if name == "cond":
            return self._branches(eqn, given, inside("branch"))
        if name == "shard_map":
            return self._shards(eqn, given, inside("mesh"))
        if name in CALLS and len(getattr(body, "jaxpr", body).invars) == len(given):
            return self.closed(body, given, inside("call"))
        return [
            self._graph.add(Node(name, given, var.aval, scope, eqn, index, slot, is_backward))
            for slot, var in enumerate(eqn.outvars)
        ]

    def _edge(self, kind: str, source: Node, aval: Any, inner: Scope, slot: int = 0) -> Node:
        node = Node(kind, [source], aval, inner, inner.eqn, -1, slot, inner.is_backward)
        return self._graph.add(node)

    def _scan(self, eqn: Eqn, given: list[Node], inner: Scope) -> list[Node]:
        body = eqn.params["jaxpr"]
        consts, carry = jax_private.sizes_of_scan(eqn.params)
        variables = body.jaxpr.invars
        ahead = variables[consts : consts + carry]
        states = self._states(ahead, given[consts : consts + carry], body.jaxpr.outvars, inner)
        each = [
            self._edge(EACH, source, var.aval, inner)
            for source, var in zip(
                given[consts + carry :], variables[consts + carry :], strict=True
            )
        ]
        made = self.closed(body, [*given[:consts], *states, *each], inner)
        self._close(states, made)
        stacked = [
            self._edge(STACK, node, var.aval, inner, slot)
            for slot, (node, var) in enumerate(
                zip(made[carry:], eqn.outvars[carry:], strict=True), carry
            )
        ]
        return [*self._last(states, made), *stacked]

    def _while(self, eqn: Eqn, given: list[Node], inner: Scope) -> list[Node]:
        body = eqn.params["body_jaxpr"]
        given = given[eqn.params["cond_nconsts"] :]
        consts = eqn.params["body_nconsts"]
        ahead = body.jaxpr.invars[consts:]
        states = self._states(ahead, given[consts:], body.jaxpr.outvars, inner)
        made = self.closed(body, [*given[:consts], *states], inner)
        self._close(states, made)
        return self._last(states, made)

    def _states(self, ahead: Any, starts: list[Node], results: Any, inner: Scope) -> list[Node]:
        """What a loop carries; what it hands on as it is is no state but a constant."""
        return [
            start if result is var else self._edge(CARRY, start, var.aval, inner)
            for var, start, result in zip(ahead, starts, results, strict=False)
        ]

    def _close(self, states: list[Node], made: list[Node]) -> None:
        for state, result in zip(states, made, strict=False):
            if state is not result:
                self._graph.feed(state, result)

    def _last(self, states: list[Node], made: list[Node]) -> list[Node]:
        return made[: len(states)]

    def _branches(self, eqn: Eqn, given: list[Node], inner: Scope) -> list[Node]:
        results = [self.closed(branch, given[1:], inner) for branch in eqn.params["branches"]]
        joined = []
        for slot, (var, *ways) in enumerate(zip(eqn.outvars, *results, strict=True)):
            node = Node(BRANCH, list(ways), var.aval, inner.parent or inner, eqn, inner.index, slot)
            joined.append(self._graph.add(node))
        return joined

    def _shards(self, eqn: Eqn, given: list[Node], inner: Scope) -> list[Node]:
        body = eqn.params["jaxpr"]
        local = [
            self._edge(SHARD, source, var.aval, inner, slot)
            for slot, (source, var) in enumerate(
                zip(given, getattr(body, "jaxpr", body).invars, strict=True)
            )
        ]
        made = self.closed(body, local, inner)
        return [
            self._edge(WHOLE, node, var.aval, inner, slot)
            for slot, (node, var) in enumerate(zip(made, eqn.outvars, strict=True))
        ]


def before(start: Node) -> Iterator[Node]:
    """All that a value is made of, itself first."""
    seen, todo = {start}, [start]
    while todo:
        node = todo.pop()
        yield node
        for source in node.of:
            if source not in seen:
                seen.add(source)
                todo.append(source)


def along(node: Node, axes: Axes) -> list[tuple[Node, Axes]]:
    """The values, and their dimensions, that dimensions `axes` of a value come from.

    Several dimensions, one after another, are one that was cut up. Empty where they come from
    none, or where elements do not stay in their places along them.
    """
    name = node.primitive
    if name in ELEMENTWISE or name == BRANCH or name in (CARRY, SHARD, WHOLE):
        sources = [node.of[node.slot]] if name in SLOTTED else node.of
        return [(one, axes) for one in sources if len(one.shape) == len(node.shape)]
    source = node.of[0] if node.of else node
    if name in ("reshape", "squeeze", "expand_dims"):
        moved = _reshaped(source.shape, node.shape, axes)
    else:
        each = [_moved(node, source, axis) for axis in axes]
        places = [at for at in each if at is not None]
        is_kept = len(places) == len(axes) and places == [*range(places[0], places[0] + len(axes))]
        moved = tuple(places) if is_kept else ()
    sources = node.of if name == "concatenate" else [source]
    return [(one, moved) for one in sources if moved]


def _moved(node: Node, source: Node, axis: int) -> int | None:
    """Where dimension `axis` of a value lies in its source."""
    name, params = node.primitive, node.params
    if name == EACH:
        return axis + 1
    if name == STACK:
        return axis - 1 if axis else None
    if name == "transpose":
        return int(params["permutation"][axis])
    if name == "broadcast_in_dim":
        places = [int(place) for place in params["broadcast_dimensions"]]
        if axis not in places:
            return None
        inner = places.index(axis)
        return inner if source.shape[inner] == node.shape[axis] else None
    if name in ("slice", "pad", "concatenate", "dynamic_slice"):
        is_whole = source.shape[axis] == node.shape[axis]
        return axis if is_whole and params.get("dimension") != axis else None
    if name in REDUCTIONS or name in ("argmax", "argmin"):
        return [at for at in range(len(source.shape)) if at not in params["axes"]][axis]
    if name.startswith("all_gather"):
        return axis if params.get("tiled") else None
    return None


def _reshaped(old: tuple[int, ...], new: tuple[int, ...], axes: Axes) -> Axes:
    """The dimensions that a reshape makes others of, all of them: none where it mixes them."""
    ahead, size = prod(new[: axes[0]]), prod(new[axis] for axis in axes)
    starts = [prod(old[:at]) for at in range(len(old) + 1)]
    if size < 2 or ahead not in starts or ahead * size not in starts:
        return ()
    first = max(at for at, start in enumerate(starts) if start == ahead)
    return tuple(range(first, starts.index(ahead * size)))


def differs_along(node: Node, scope: Scope, seen: Differing | None = None) -> set[str]:
    """Axes of the mesh of `scope` along which the value of a node inside it may differ.

    It follows from how it is made: what enters differs as its sharding says, and a sum or a gather
    over an axis makes it the same. JAX's own note (``vma`` of a type) calls what was gathered, or
    declared to differ, different.
    """
    seen = {} if seen is None else seen
    if (node, scope) in seen:
        return seen[node, scope]
    known: dict[Node, set[str]] = {}
    inside = [one for one in reversed(list(before(node))) if scope in one.scope.chain()]
    changed = True
    while changed:  # a loop's state is made of what it becomes
        changed = False
        for one in inside:
            axes = _axes(one, scope, known, seen)
            if axes != known.get(one):
                known[one] = axes
                changed = True
    seen[node, scope] = known.get(node, set())
    return seen[node, scope]


def _axes(node: Node, scope: Scope, known: dict[Node, set[str]], seen: Differing) -> set[str]:
    if node.primitive == SHARD and node.scope is scope:
        named = named_axes(scope.eqn.params["in_specs"][node.slot])
        return named & _handed_over(node, scope, seen) if named else named
    axes: set[str] = set().union(*(known.get(source, set()) for source in node.of))
    is_of_all = node.params.get("axis_index_groups") is None
    if node.primitive in _SAME_EVERYWHERE and is_of_all:
        return axes - _axis_names(node)
    return axes | _axis_names(node) if node.primitive in _DIFFERENT else axes


def _handed_over(node: Node, scope: Scope, seen: Differing) -> set[str]:
    """Axes along which what enters a mesh's shards may differ, where other shards made it.

    So the forward pass hands on what it keeps, constants too, as if each shard had its own.
    """
    (source,) = node.of
    spec, mesh = scope.eqn.params["in_specs"][node.slot], scope.eqn.params["mesh"]
    every = named_axes(spec)
    if source.primitive != WHOLE:
        return every
    made = source.scope
    is_same = made.eqn.params["mesh"] == mesh and made.eqn.params["out_specs"][source.slot] == spec
    return differs_along(source.of[0], made, seen) if is_same else every


def _axis_names(node: Node) -> set[str]:
    params = node.params
    names = params.get("axes", params.get("axis_name", ()))
    return {names} if isinstance(names, str) else {str(name) for name in names}


def named_axes(spec: Any) -> set[str]:
    """Mesh axes that a sharding, or a part of one, names."""
    found: set[str] = set()
    for part in spec:
        found |= {part} if isinstance(part, str) else set(part or ())
    return found
