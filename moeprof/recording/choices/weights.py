"""Question: which arguments of a step is a value a view of, as a weight is?

A weight is an argument, or several, that was cast, sliced, normalised or gathered from other
devices, but never multiplied by activations. In a loop over layers it is one slice of a stack: then
it differs from one iteration to the next (``loops``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moeprof.recording.choices.graph import (
    BRANCH,
    CARRY,
    EACH,
    SHARD,
    STACK,
    WHOLE,
    Graph,
    Node,
    Scope,
    before,
)

ELEMENTWISE = frozenset(
    {"add", "sub", "mul", "div", "max", "min", "neg", "sign", "abs", "sqrt", "rsqrt", "cbrt"}
    | {"exp", "exp2", "log", "log1p", "expm1", "logistic", "tanh", "erf", "pow", "integer_pow"}
    | {"square", "convert_element_type", "reduce_precision", "stop_gradient", "copy", "copy_p"}
    | {"select_n", "clamp", "sharding_constraint", "mesh_cast", "reshard", "pvary", "pcast"}
    | {
        "add_any",
        "is_finite",
        "floor",
        "ceil",
        "round",
        "sin",
        "cos",
        "name",
        "optimization_barrier",
    }
    | {"layout_constraint", "nextafter", "rem", "psum", "psum2", "psum_invariant", "pmax", "pmin"}
    | {"pbroadcast", "real", "imag"}
)
"""What leaves each element in its place."""
REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
)
VIEWS = (
    ELEMENTWISE
    | REDUCTIONS
    | frozenset(
        {"transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "rev"}
        | {"concatenate", "pad", "all_gather", "all_gather_invariant", "all_gather_reduced"}
        | {EACH, SHARD, WHOLE, BRANCH}
    )
)
_SLICES = frozenset({"dynamic_slice", "gather"})
_SLOTTED = frozenset({"optimization_barrier", "psum", "psum2", "psum_invariant", "pmax", "pmin"})
"""Each output is made of the input of the same number alone."""


@dataclass(frozen=True, repr=False)
class Weight:
    """``arguments`` are those it is made of, each with the slices taken on the way.

    ``loops`` are the loops in which it is another slice in each iteration.
    """

    arguments: frozenset[tuple[Node, tuple[object, ...]]] = frozenset()
    loops: frozenset[Scope] = frozenset()

    @property
    def is_given(self) -> bool:
        """Whether it comes from a matrix among the arguments, and not from constants alone."""
        return any(len(node.shape) >= 2 and is_float(node) for node, _ in self.arguments)

    def comes_from_stack_of(self, experts: int) -> bool:
        """Whether one of the arguments has a dimension of experts beside those of matrices."""
        return any(
            len(node.shape) >= 3 and experts in node.shape and is_float(node)
            for node, _ in self.arguments
        )


@dataclass(repr=False)
class Weights:
    """Answers for the values of one graph, each worked out once."""

    graph: Graph
    _known: dict[Node, Weight | None] = field(default_factory=dict)

    def of(self, node: Node) -> Weight | None:
        """The weight that a value is a view of; None where it is none."""
        todo = [node]
        while todo:
            one = todo[-1]
            if one in self._known:
                todo.pop()
                continue
            sources = _sources(one)
            if sources is None:
                self._known[one] = None
                continue
            missing = [source for source in sources if source not in self._known]
            if missing:  # never in a circle: a loop's state is no view
                todo += missing
            else:
                self._known[one] = self._joined(one, sources)
        return self._known[node]

    def _joined(self, node: Node, sources: list[Node]) -> Weight | None:
        if node.primitive in ("argument", "constant"):
            return Weight(frozenset({(node, ())}))
        found = [self._known[source] for source in sources]
        if any(weight is None for weight in found):
            return None
        known = [weight for weight in found if weight is not None]
        loops = frozenset().union(*(weight.loops for weight in known))
        step = _slice_of(node)
        if node.primitive == EACH:
            loops |= {node.scope}
        elif node.primitive in _SLICES:
            moved = _counted_by(node)
            if moved is None:
                return None
            loops |= moved
        every = frozenset().union(*(weight.arguments for weight in known))
        if step is not None:
            every = frozenset((given, (*way, step)) for given, way in every)
        return Weight(every, loops)


def _sources(node: Node) -> list[Node] | None:
    """What to ask about a node's origin; None where it is no view of anything."""
    if node.primitive in ("argument", "constant", "literal", "iota"):
        return []
    if node.primitive in _SLICES:
        return node.of[:1]
    if node.primitive not in VIEWS:
        return None
    return [node.of[node.slot]] if node.primitive in _SLOTTED else node.of


def _slice_of(node: Node) -> object | None:
    """What tells this slice of a stack from another."""
    if node.primitive == "slice":
        start, limit = node.params["start_indices"], node.params["limit_indices"]
        return ("slice", tuple(map(int, start)), tuple(map(int, limit)))
    if node.primitive == EACH:
        return EACH
    if node.primitive in _SLICES:
        numbers = _literals(node.of[1:])
        return EACH if numbers is None else ("slice", numbers)
    return None


def _literals(nodes: list[Node]) -> tuple[str, ...] | None:
    """The numbers that indices are, where they are written in the program."""
    found = []
    for node in nodes:
        around = list(before(node))
        if any(not one.of and one.primitive != "literal" for one in around):
            return None
        found += [str(one.literal) for one in around if one.primitive == "literal"]
    return tuple(sorted(found))


def _counted_by(node: Node) -> frozenset[Scope] | None:
    """Loops whose count says which slice it is; None where activations do."""
    loops: set[Scope] = set()
    for index in node.of[1:]:
        for one in before(index):
            if len(one.shape) > 1 or is_float(one) or one.primitive == "axis_index":
                return None
            if one.primitive in (CARRY, EACH):
                loops.add(one.scope)
            elif one.primitive == "argument":
                return None
    return frozenset(loops)


def is_float(node: Node) -> bool:
    """Whether a value is of real numbers, as weights and activations are."""
    return getattr(getattr(node.aval, "dtype", None), "kind", "") in ("f", "V")


def along(node: Node, axis: int) -> list[tuple[Node, int]]:
    """The values, and their dimensions, that dimension `axis` of a value comes from.

    Empty where it comes from none, or where elements do not stay in their places along it.
    """
    name = node.primitive
    if name in ELEMENTWISE or name == BRANCH or name in (CARRY, SHARD, WHOLE):
        sources = [node.of[node.slot]] if name in _SLOTTED else node.of
        return [(one, axis) for one in sources if len(one.shape) == len(node.shape)]
    if name == EACH:
        return [(node.of[0], axis + 1)]
    if name == STACK:
        return [(node.of[0], axis - 1)] if axis else []
    source = node.of[0] if node.of else node
    moved = _moved(node, source, axis)
    return [] if moved is None else [(one, moved) for one in _same_rank(node, source)]


def _same_rank(node: Node, source: Node) -> list[Node]:
    return node.of if node.primitive == "concatenate" else [source]


def _moved(node: Node, source: Node, axis: int) -> int | None:
    """Where dimension `axis` of a view lies in its source."""
    name, params = node.primitive, node.params
    if name == "transpose":
        return int(params["permutation"][axis])
    if name == "reshape":
        return _reshaped(source.shape, node.shape, axis)
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
    if name in ("squeeze", "expand_dims"):
        return _reshaped(source.shape, node.shape, axis)
    if name.startswith("all_gather"):
        return axis if params.get("tiled") else None
    return None


def _reshaped(old: tuple[int, ...], new: tuple[int, ...], axis: int) -> int | None:
    """The dimension that a reshape keeps as it is."""
    ahead = 1
    for length in new[:axis]:
        ahead *= length
    passed = 1
    for at, length in enumerate(old):
        if passed == ahead and length == new[axis] and length > 1:
            return at
        passed *= length
    return None
