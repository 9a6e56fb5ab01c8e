"""Question: which choices in a traced step are routers', and of which layers?

A router chooses the largest of scores that are a product of tokens with a weight of one column for
each expert; what it chose then steers the products with the experts' weights. Anything else that
chooses (sampling, accuracy, beams) lacks one of the two. All of a step's routers are known for
certain or none is: `find` then says in a line why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import prod

from moeprof.recording.choices.graph import (
    CARRY,
    Axes,
    Graph,
    Node,
    Scope,
    along,
    before,
    differs_along,
    graph_of,
)
from moeprof.recording.choices.weights import Choice, Steering, Weight, Weights, is_float

CHOICES = {"top_k": 1, "approx_top_k": 1, "argmax": 0, "argmin": 0}
"""Which output of a choice has the indices."""


class NotRecorded(Exception):
    """Why the routing of a step is not recorded, in a few words."""


class NotUnderstood(NotRecorded):
    """Why it is not recorded although there are routers; whether the step has a backward pass."""

    def __init__(self, why: str, is_training: bool = False) -> None:
        """Keep both."""
        super().__init__(why)
        self.is_training = is_training


@dataclass(frozen=True, eq=False, repr=False)
class Router:
    """One choice of experts: the node of its indices, among how many, and of what.

    ``columns`` are the values that the weight has in the products. ``layers`` are the loops around
    it that go over layers, outermost first; others go over tokens.
    ``ranks`` is how many devices share the experts' weights, 1 where that is not known.
    ``scored`` are the arguments that its scores are products of.
    """

    node: Node
    operand: Node
    experts: int
    weight: Weight
    columns: tuple[Node, ...] = ()
    layers: tuple[Scope, ...] = ()
    ranks: int = 1
    scored: frozenset[Node] = frozenset()

    @property
    def choice(self) -> Choice:
        """What is asked of its way to the experts."""
        return Choice(self.node, self.experts, self.scored)

    @property
    def runs(self) -> int:
        """Layers that it is the router of."""
        return prod(scope.eqn.params["length"] for scope in self.layers)

    @property
    def chosen(self) -> int:
        """Experts chosen by each token."""
        return 1 if CHOICES.get(self.node.primitive) == 0 else self.node.shape[-1]


def find(closed: object) -> list[Router]:
    """The routers of a traced step, in the order they run.

    Raises:
        NotRecorded: there are none, or not all of them are understood.
    """
    graph = graph_of(closed)
    weights = Weights(graph)
    steering = Steering(graph, weights)
    scored = list(_scored(graph, weights))
    routers = [one for one in scored if steering.reaches_experts(one.choice)]
    of_experts = _chosen_by_experts(graph, weights, steering, routers)
    if not routers:
        raise NotRecorded(of_experts or _why_none(scored))
    try:
        return _understood(graph, weights, steering, scored, routers, of_experts)
    except NotRecorded as why:
        raise NotUnderstood(str(why)) from None


def _understood(
    graph: Graph,
    weights: Weights,
    steering: Steering,
    scored: list[Router],
    routers: list[Router],
    of_experts: str | None,
) -> list[Router]:
    """The routers with their layers, if nothing about any of them is in doubt."""
    if of_experts:
        raise NotRecorded(of_experts)
    _require_all(scored, routers)
    _require_one_step(graph, weights, steering, routers)
    if not all(steering.reaches_experts(one.choice, {one.node}) for one in routers):
        raise NotRecorded("none found: experts are taken by a bound on scores, not by indices")
    forward = [one for one in routers if not one.node.is_backward]
    if not forward:
        raise NotRecorded("none found: the only choices of experts are recomputed ones")
    kept = _applied_once(forward)
    return [_placed(one, steering) for one in kept]


def _scored(graph: Graph, weights: Weights) -> Iterator[Router]:
    """Choices along the columns of a weight."""
    for node in graph.nodes:
        for operand, axis, index in _choice(graph, node):
            columns = _score_columns(operand, axis, weights)
            if columns:
                yield Router(
                    index,
                    operand,
                    operand.shape[axis],
                    _joined(columns, weights),
                    tuple(columns),
                    scored=_scored_by(operand, weights),
                )


def _choice(graph: Graph, node: Node) -> list[tuple[Node, int, Node]]:
    """Scores, the dimension chosen along, and the indices, where a node is those of a choice."""
    if node.eqn is None or not node.of:
        return []
    operand = node.of[0]
    if CHOICES.get(node.primitive) == node.slot:
        return [(operand, _axis(node, operand), node)]
    if node.primitive == "sort" and node.slot and node.params.get("num_keys", 1) == 1:
        axis = node.params["dimension"]
        is_places = node.of[node.slot].primitive == "iota"
        first = _first_of_sorted(graph, node, axis) if is_places else None
        return [] if first is None else [(operand, axis, first)]
    return []


def _axis(node: Node, operand: Node) -> int:
    params = node.params
    axis = params.get("axis", params.get("reduction_dimension", -1))
    axis = params["axes"][0] if "axes" in params else axis
    return int(axis) % len(operand.shape)


def _first_of_sorted(graph: Graph, node: Node, axis: int) -> Node | None:
    """The one slice along the sorted dimension that anybody takes of the places."""
    slices, todo = [], [node]
    while todo:
        for user in graph.users[todo.pop()]:
            if user.primitive == "slice" and user.shape[axis] < node.shape[axis]:
                slices.append(user)
            elif user.primitive in ("rev", "convert_element_type"):
                todo.append(user)
    found = {(str(one.params["start_indices"]), one.shape) for one in slices}
    return slices[0] if len(found) == 1 else None


def _score_columns(operand: Node, axis: int, weights: Weights) -> list[Node]:
    """The weights whose columns the scores are along `axis`; none if they are no such product."""
    found = []
    start: tuple[Node, Axes] = operand, (axis,)
    seen, todo = {start}, [start]
    while todo:
        node, at = todo.pop()
        if node.primitive == "dot_general":
            found += _columns(node, at[0], weights) if len(at) == 1 else []
            continue
        for source in along(node, at):
            if source not in seen and source[0].shape:
                seen.add(source)
                todo.append(source)
    return found


def _joined(columns: list[Node], weights: Weights) -> Weight:
    known = [weight for node in columns if (weight := weights.of(node)) is not None]
    return Weight(
        frozenset().union(*(weight.arguments for weight in known)),
        frozenset().union(*(weight.loops for weight in known)),
    )


def _columns(product: Node, axis: int, weights: Weights) -> list[Node]:
    """The weight that a product has dimension `axis` from, if it is a column of one."""
    (left, right), (left_batch, right_batch) = product.params["dimension_numbers"]
    sides = []
    at = len(left_batch)
    for node, contracted, batch in zip(
        product.of[:2], (left, right), (left_batch, right_batch), strict=True
    ):
        free = len(node.shape) - len(contracted) - len(batch)
        sides.append((node, range(at, at + free), len(batch)))
        at += free
    for node, dims, batch in sides:
        weight = weights.of(node) if axis in dims else None
        if weight is not None and weight.is_given:
            if batch:
                raise NotRecorded("none found: several routers are applied side by side")
            return [node]
    return []


def _scored_by(operand: Node, weights: Weights) -> frozenset[Node]:
    """The arguments that scores are products of: weights, and tokens that are an argument."""
    products = [node for node in _scores_behind(operand) if node.primitive == "dot_general"]
    known = [weights.of(source) for node in products for source in node.of if is_float(source)]
    return frozenset(node for weight in known if weight for node, _ in weight.arguments)


def _chosen_by_experts(
    graph: Graph, weights: Weights, steering: Steering, routers: list[Router]
) -> str | None:
    """Why nothing can be recorded where experts choose tokens.

    Experts that choose among the tokens that chose them fill their capacity: no choice of theirs.
    """
    later = {node for one in routers for node in steering.ahead_of(one.node)}
    for node in graph.nodes:
        for operand, axis, index in _choice(graph, node):
            if node in later or index in later:
                continue
            scored = _scored_by(operand, weights)
            for at in range(len(operand.shape)):
                choice = Choice(index, operand.shape[at], scored)
                is_along = at != axis and _score_columns(operand, at, weights)
                if is_along and steering.reaches_experts(choice):
                    return f"expert choice: not recorded ({choice.experts} experts choose tokens)"
    return None


def _why_none(scored: list[Router]) -> str:
    """Why no choice of a step is taken for a router's."""
    if scored:
        return "none found: what is chosen among columns of a weight steers no experts' weights"
    return "none found: nothing is chosen among the columns of a weight"


def _require_all(scored: list[Router], routers: list[Router]) -> None:
    """Refuse a step in which a choice looks like those of routers and is not understood."""
    sizes = {one.experts for one in routers}
    known = frozenset().union(*(one.weight.arguments for one in routers))
    for one in scored:
        is_alien = not one.weight.arguments <= known and not one.node.is_backward
        if one not in routers and one.experts in sizes and is_alien:
            raise NotRecorded(
                f"none found: one more choice among {one.experts} steers no experts' weights"
            )


def _require_one_step(
    graph: Graph, weights: Weights, steering: Steering, routers: list[Router]
) -> None:
    """Refuse experts that are chosen in two steps, a group of them and one of its own, say."""
    for one in routers:
        own = _products_behind(one.operand, weights)
        for node in steering.ahead_of(one.node):
            for operand, _, _ in _choice(graph, node):
                if is_float(operand) and _products_behind(operand, weights) - own:
                    raise NotRecorded("none found: experts are chosen in two steps")
    ends = {one: steering.experts_of(one.choice) for one in routers}
    for one, other in combinations(routers, 2):
        is_of_one = one.weight.arguments == other.weight.arguments
        if is_of_one or not ends[one] & ends[other]:
            continue
        if not steering.chosen(one.node) & set(before(other.operand)):
            raise NotRecorded("none found: two routers choose among the same experts")


def _products_behind(operand: Node, weights: Weights) -> set[object]:
    """The products that scores are made of, each by the columns of its weight, if it has one."""
    found: set[object] = set()
    for node in _scores_behind(operand):
        if node.primitive == "dot_general":
            known = [weights.of(source) for source in node.of[:2] if is_float(source)]
            ways = {way for weight in known if weight is not None for way in weight.arguments}
            found |= ways or {node}
    return found


def _applied_once(routers: list[Router]) -> list[Router]:
    """Each router's choices, where it is applied once: one made of another is its second choice."""
    by_weight: dict[object, list[Router]] = defaultdict(list)
    for one in routers:
        by_weight[one.weight.arguments].append(one)
    kept: set[Router] = set()
    for same in by_weight.values():
        kept |= set(_of_one_application(same))
    return [one for one in routers if one in kept]


def _of_one_application(same: list[Router]) -> list[Router]:
    most: dict[Node, Router] = {}
    for one in same:
        known = most.get(one.operand)
        if known is None or one.chosen > known.chosen:
            most[one.operand] = one
    kept = list(most.values())
    for earlier, later in pairwise(kept):
        is_second = later.node.scope is earlier.node.scope or _share_call(later, earlier)
        if not (is_second and earlier.operand in set(_scores_behind(later.operand))):
            raise NotRecorded(f"none found: a router is applied {len(kept)} times in a step")
    return kept


def _share_call(one: Router, other: Router) -> bool:
    """Whether no loop lies between two choices."""
    return _loops(one.node) == _loops(other.node)


def _loops(node: Node) -> list[Scope]:
    return [scope for scope in node.scope.chain() if scope.kind == "loop"]


def _scores_behind(operand: Node) -> Iterator[Node]:
    """What scores are made of, up to the product."""
    seen, todo = {operand}, [operand]
    while todo:
        node = todo.pop()
        yield node
        if node.primitive == "dot_general":
            continue
        for source in node.of:
            if source not in seen:
                seen.add(source)
                todo.append(source)


def _placed(router: Router, steering: Steering) -> Router:
    """With the loops that go over layers.

    Raises:
        NotRecorded: it stands where a choice has no fixed place in the step's outputs.
    """
    layers = []
    for scope in router.node.scope.chain():
        if scope.kind == "while":
            raise NotRecorded("none found: a router stands in a while loop")
        if scope.kind == "branch":
            raise NotRecorded("none found: a router stands in a branch")
        if scope.kind == "mesh":
            _require_same_router(router, scope)
        if scope.kind != "loop":
            continue
        if scope in router.weight.loops:
            layers.append(scope)
        elif _carries_activations(router.operand, scope):
            raise NotRecorded("none found: a loop carries tokens past the same router again")
    ranks = steering.ranks(router.choice)
    return replace(router, layers=tuple(layers), ranks=ranks)


def _require_same_router(router: Router, mesh: Scope) -> None:
    """Refuse shards that have routers of their own: stages of a pipeline, which idle at times."""
    columns = [node for node in router.columns if mesh in node.scope.chain()]
    own = set().union(*(differs_along(node, mesh) for node in columns))
    axes = own & differs_along(router.operand, mesh)
    if axes:
        raise NotRecorded(
            f"none found: routers differ along mesh axis {', '.join(sorted(axes))}, as stages do"
        )


def _carries_activations(operand: Node, loop: Scope) -> bool:
    """Whether scores depend on what a loop carries, its counts and keys aside."""
    return any(
        node.primitive == CARRY and node.scope is loop and is_float(node)
        for node in before(operand)
    )
