"""Question: which values are weights, and does a choice steer those of experts?

A weight is an argument, or several, that was cast, sliced, normalised or gathered from other
devices, but never multiplied by activations. In a loop over layers it is one slice of a stack: then
it differs from one iteration to the next (``loops``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import prod

from moeprof.recording.choices.graph import (
    BRANCH,
    CARRY,
    EACH,
    ELEMENTWISE,
    REDUCTIONS,
    SHARD,
    SLOTTED,
    STACK,
    WHOLE,
    Graph,
    Node,
    Scope,
    before,
    differs_along,
    named_axes,
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

    def comes_from_stack_for(self, choice: Choice) -> bool:
        """Whether one of the arguments has a dimension of experts ahead of those of matrices."""
        return any(
            len(node.shape) >= 3 and choice.experts in node.shape[:-1] and is_float(node)
            for node, _ in self.arguments
            if node not in choice.scored
        )


@dataclass(frozen=True)
class Choice:
    """Indices, among how many experts, and the arguments that the scores are products of.

    Those hold no expert's weights: a head of several parts has columns in a stack of its own.
    """

    node: Node
    experts: int
    scored: frozenset[Node]


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
    return [node.of[node.slot]] if node.primitive in SLOTTED else node.of


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


_PLACES = VIEWS | {CARRY, STACK}
_MOVES = ("gather", "dynamic_", "scatter", "sort", "cum")
_MEETING = frozenset(
    {"mul", "dot_general", "select_n", "gather", "scatter-add", "scatter", "while"}
)


class Steering:
    """Follows choices through one graph."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        """Follow nothing yet."""
        self._graph = graph
        self._weights = weights
        self._results: dict[tuple[int, frozenset[Node], Scope], set[Node]] = {}

    def reaches_experts(self, choice: Choice, starts: Collection[Node] | None = None) -> bool:
        """Whether a choice, or these results of it, steers the weights of as many experts."""
        ahead = list(self._ahead(self.chosen(choice.node) if starts is None else starts))
        if any(self._stacks(node, choice) for node in ahead):
            return True
        if self._compares_with_each(choice):
            return True
        results, reached = self._of_experts(choice), set(ahead)
        return any(_meets(node, reached, results) for node in ahead)

    def ahead_of(self, choice: Node) -> list[Node]:
        """What is made of a choice, up to products with weights."""
        return list(self._ahead(self.chosen(choice)))

    def experts_of(self, choice: Choice) -> set[Node]:
        """The products with experts' weights that a choice comes to first."""
        return {node for node in self.ahead_of(choice.node) if self._stacks(node, choice)}

    def ranks(self, choice: Choice) -> int:
        """Devices that share the experts, where each computes with its own part of the stack.

        Known inside a mesh's shard alone: what a compiler shares out, no trace tells.
        """
        users = self.experts_of(choice) or {
            node
            for node in self._graph.nodes
            if node.scope is choice.node.scope and self._stacks(node, choice)
        }
        stacks = (stack for node in users for stack in self._stacks(node, choice))
        found = {_shares(stack, choice.experts) for stack in stacks}
        return found.pop() if len(found) == 1 else 1

    def chosen(self, choice: Node) -> set[Node]:
        """A choice's indices, and the values that go with them."""
        same = self._graph.users[choice.of[0]]
        return {choice} | {
            node for node in same if node.eqn is choice.eqn and node.scope is choice.scope
        }

    def _ahead(self, starts: Collection[Node], *, follows_loops: bool = True) -> Iterator[Node]:
        """What is made of some values in the forward pass, up to products with weights."""
        seen, todo = set(starts), list(starts)
        while todo:
            node = todo.pop()
            yield node
            if node not in starts and self._ends_at(node):
                continue
            for user in self._graph.users[node]:
                is_followed = follows_loops or user.primitive != CARRY
                if user not in seen and is_followed and not user.is_backward:
                    seen.add(user)
                    todo.append(user)

    def _ends_at(self, node: Node) -> bool:
        return _computes(node) and any(weight.is_given for _, weight in self._given(node))

    def _given(self, node: Node) -> list[tuple[Node, Weight]]:
        """Operands of a node that are weights."""
        pairs = ((source, self._weights.of(source)) for source in node.of if is_float(source))
        return [(source, weight) for source, weight in pairs if weight is not None]

    def _stacks(self, node: Node, choice: Choice) -> list[Node]:
        """Operands of a node that hold a matrix for each expert, or some of those.

        In a loop over experts it is one matrix of a stack; a loop around the choice is none.
        """
        if not (_computes(node) or _takes_matrices(node)):
            return []
        around = set(choice.node.scope.chain())
        return [
            source
            for source, weight in self._given(node)
            if weight.comes_from_stack_for(choice)
            and (
                len(source.shape) >= 3
                or any(
                    loop.eqn.params["length"] == choice.experts for loop in weight.loops - around
                )
            )
        ]

    def _compares_with_each(self, choice: Choice) -> bool:
        """Whether indices are compared with each expert's number, for weights of its own."""
        weights: dict[str, set[object]] = {str(number): set() for number in range(choice.experts)}
        seen, todo = {choice.node}, [choice.node]
        while todo:
            for user in self._graph.users[todo.pop()]:
                numbers = {str(one.literal) for one in user.of if one.primitive == "literal"}
                if user.primitive in ("eq", "ne"):
                    for number in numbers & weights.keys():
                        weights[number] |= self._steered(user)
                elif user.primitive in _PLACES and user not in seen and not user.is_backward:
                    seen.add(user)
                    todo.append(user)
        every = Counter(weight for found in weights.values() for weight in found)
        return all(any(every[weight] == 1 for weight in found) for found in weights.values())

    def _steered(self, start: Node) -> set[object]:
        """Weights of the products that a value comes to first, or whose results it weighs.

        What a loop carries on is the next layer's, whose experts are slices of the same stacks.
        """
        ahead = set(self._ahead({start}, follows_loops=False))
        found: set[object] = set()
        for node in ahead:
            if self._ends_at(node):
                found |= self._behind([node])
            elif node.primitive in _MEETING and len(node.shape) > 1:
                found |= self._behind([source for source in node.of if source not in ahead])
        return found

    def _behind(self, todo: list[Node]) -> set[object]:
        """Weights of the last products that values are made of."""
        found: set[object] = set()
        seen = set(todo)
        while todo:
            node = todo.pop()
            if self._ends_at(node):
                found |= {way for _, weight in self._given(node) for way in weight.arguments}
                continue
            todo += [source for source in node.of if source not in seen]
            seen |= set(node.of)
        return found

    def _of_experts(self, choice: Choice) -> set[Node]:
        """What is made of the results of products with the stack of so many matrices."""
        key = choice.experts, choice.scored, choice.node.scope
        if key not in self._results:
            starts = {
                node
                for node in self._graph.nodes
                if not node.is_backward and _computes(node) and self._stacks(node, choice)
            }
            self._results[key] = {
                node for node in self._ahead(starts) if node in starts or not self._ends_at(node)
            }
        return self._results[key]


def _meets(node: Node, ahead: set[Node], results: set[Node]) -> bool:
    """Whether a node takes what was chosen and results of experts, from different operands."""
    if node.primitive not in _MEETING or len(node.shape) < 2:
        return False
    chosen = [source for source in node.of if source in ahead and source not in results]
    made = [source for source in node.of if source in results]
    return bool(chosen and made)


def _takes_matrices(node: Node) -> bool:
    """Whether a node takes whole matrices of a stack, and not rows of a table of several parts."""
    sizes = node.params.get("slice_sizes", ())
    return node.primitive in _SLICES and sum(size > 1 for size in sizes) >= 2


def _computes(node: Node) -> bool:
    """Whether a value is computed from its operands, by a kernel of any name: not moved alone."""
    return node.primitive not in _PLACES and not node.primitive.startswith(_MOVES)


def _shares(stack: Node, experts: int) -> int:
    """Into how many parts a mesh's shards split a stack of matrices by experts."""
    parts = 1
    for node in before(stack):
        shape = node.of[0].shape if node.primitive == SHARD else ()
        if shape.count(experts) != 1 or node.scope.kind != "mesh":
            continue
        spec = node.scope.eqn.params["in_specs"][node.slot]
        axes = named_axes(spec[shape.index(experts) :][:1])
        if axes <= differs_along(stack, node.scope):
            lengths = node.scope.eqn.params["mesh"].shape
            parts *= prod(lengths[axis] for axis in axes)
    return parts
