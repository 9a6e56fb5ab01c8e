"""Question: does a choice steer the products with the experts' weights?

From a choice one follows what is made of it, and stops at every product with a weight: the first
ones on the way must be products with a stack of matrices, one for each expert chosen among, or
something that takes rows of such a stack by what was chosen. Where all experts compute all tokens,
what was chosen weighs their results instead: then one follows these too, and the two must meet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod

from moeprof.recording.choices.graph import CARRY, SHARD, STACK, Graph, Node, Scope, before
from moeprof.recording.choices.meshes import differs_along, named_axes
from moeprof.recording.choices.weights import VIEWS, Weight, Weights, is_float

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
        self._results: dict[tuple[int, Scope], set[Node]] = {}

    def reaches_experts(
        self, choice: Node, experts: int, starts: Collection[Node] | None = None
    ) -> bool:
        """Whether a choice among so many, or these results of it, steers the weights of so many."""
        ahead = list(self._ahead(self.chosen(choice) if starts is None else starts))
        if any(self._stacks(node, experts, choice) for node in ahead):
            return True
        if self._compares_with_each(ahead, experts):
            return True
        results, reached = self._of_experts(experts, choice), set(ahead)
        return any(
            node.primitive in _MEETING
            and len(node.shape) > 1
            and self._meets(node, reached, results)
            for node in ahead
        )

    def ahead_of(self, choice: Node) -> list[Node]:
        """What is made of a choice, up to products with weights."""
        return list(self._ahead(self.chosen(choice)))

    def experts_of(self, choice: Node, experts: int) -> set[Node]:
        """The products with experts' weights that a choice comes to first."""
        return {node for node in self.ahead_of(choice) if self._stacks(node, experts, choice)}

    def ranks(self, choice: Node, experts: int) -> int:
        """Devices that share the experts, where each computes with its own part of the stack.

        Known inside a mesh's shard alone: what a compiler shares out, no trace tells.
        """
        users = self.experts_of(choice, experts) or {
            node
            for node in self._graph.nodes
            if node.scope is choice.scope and self._stacks(node, experts, choice)
        }
        stacks = (stack for node in users for stack in self._stacks(node, experts, choice))
        found = {_shares(stack, experts) for stack in stacks}
        return found.pop() if len(found) == 1 else 1

    def chosen(self, choice: Node) -> set[Node]:
        """A choice's indices, and the values that go with them."""
        same = self._graph.users[choice.of[0]]
        return {choice} | {
            node for node in same if node.eqn is choice.eqn and node.scope is choice.scope
        }

    def _ahead(self, starts: Collection[Node]) -> Iterator[Node]:
        """What is made of some values in the forward pass, up to products with weights."""
        seen, todo = set(starts), list(starts)
        while todo:
            node = todo.pop()
            yield node
            if node not in starts and self._ends_at(node):
                continue
            for user in self._graph.users[node]:
                if user not in seen and not user.is_backward:
                    seen.add(user)
                    todo.append(user)

    def _ends_at(self, node: Node) -> bool:
        return _computes(node) and any(weight.is_given for _, weight in self._given(node))

    def _given(self, node: Node) -> list[tuple[Node, Weight]]:
        """Operands of a node that are weights."""
        pairs = ((source, self._weights.of(source)) for source in node.of if is_float(source))
        return [(source, weight) for source, weight in pairs if weight is not None]

    def _stacks(self, node: Node, experts: int, choice: Node) -> list[Node]:
        """Operands of a node that hold a matrix for each expert, or some of those.

        In a loop over experts it is one matrix of a stack; a loop around the choice is none.
        """
        if not (_computes(node) or node.primitive in ("gather", "dynamic_slice")):
            return []
        around = set(choice.scope.chain())
        return [
            source
            for source, weight in self._given(node)
            if weight.comes_from_stack_of(experts)
            and (
                len(source.shape) >= 3
                or any(loop.eqn.params["length"] == experts for loop in weight.loops - around)
            )
        ]

    def _compares_with_each(self, ahead: list[Node], experts: int) -> bool:
        """Whether what was chosen is compared with the number of each expert in turn."""
        numbers = {
            str(source.literal)
            for node in ahead
            if node.primitive in ("eq", "ne")
            for source in node.of
            if source.primitive == "literal"
        }
        return {str(number) for number in range(experts)} <= numbers

    def _of_experts(self, experts: int, choice: Node) -> set[Node]:
        """What is made of the results of products with the stack of so many matrices."""
        key = experts, choice.scope
        if key not in self._results:
            starts = [
                node
                for node in self._graph.nodes
                if not node.is_backward and _computes(node) and self._stacks(node, experts, choice)
            ]
            self._results[key] = set(self._ahead(starts))
        return self._results[key]

    def _meets(self, node: Node, ahead: set[Node], results: set[Node]) -> bool:
        """Whether a node takes both, from different operands."""
        chosen = [source for source in node.of if source in ahead and source not in results]
        made = [source for source in node.of if source in results]
        return bool(chosen and made)


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
