"""Question: does a choice steer the products with the experts' weights?

From a choice one follows what is made of it, and stops at every product with a weight: the first
ones on the way must be products with a stack of matrices, one for each expert chosen among, or
something that takes rows of such a stack by what was chosen. Where all experts compute all tokens,
what was chosen weighs their results instead: then one follows these too, and the two must meet.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeprof.recording.choices.graph import Graph, Node
from moeprof.recording.choices.weights import Weight, Weights, is_float

_PRODUCTS = frozenset({"dot_general", "ragged_dot", "ragged_dot_general", "conv_general_dilated"})
_KERNELS = frozenset({"pallas_call", "ffi_call", "custom_call", "tpu_custom_call", "triton_call"})
_MEETING = frozenset(
    {"mul", "dot_general", "select_n", "gather", "scatter-add", "scatter", "while"}
)


class Steering:
    """Follows choices through one graph."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        """Follow nothing yet."""
        self._graph = graph
        self._weights = weights
        self._results: dict[int, set[Node]] = {}

    def reaches_experts(self, choice: Node, experts: int) -> bool:
        """Whether a choice among so many steers the weights of so many."""
        ahead = self.ahead_of(choice)
        if any(self._is_product_of(node, experts) for node in ahead):
            return True
        if self._compares_with_each(ahead, experts):
            return True
        results = self._of_experts(experts)
        return any(
            node.primitive in _MEETING
            and len(node.shape) > 1
            and self._meets(node, set(ahead), results)
            for node in ahead
        )

    def ahead_of(self, choice: Node) -> list[Node]:
        """What is made of a choice, up to products with weights."""
        return list(self._ahead(self._chosen(choice)))

    def experts_of(self, choice: Node, experts: int) -> set[Node]:
        """The products with experts' weights that a choice comes to first."""
        return {node for node in self.ahead_of(choice) if self._is_product_of(node, experts)}

    def ranks(self, choice: Node, experts: int) -> int:
        """Devices that share the experts, where each computes with its own part of the stack.

        Known inside a mesh's shard alone: what a compiler shares out, no trace tells.
        """
        found = set()
        for node in self.ahead_of(choice):
            for source in self._stacks(node, experts):
                local = {n for n in source.shape[:-2] if n > 1 and experts % n == 0}
                is_shared = experts not in source.shape and len(local) == 1
                found.add(experts // local.pop() if is_shared else 1)
        return found.pop() if len(found) == 1 else 1

    def _chosen(self, choice: Node) -> list[Node]:
        """A choice's indices, and the values that go with them."""
        return [
            node
            for node in self._graph.users[choice.of[0]]
            if node.eqn is choice.eqn and node.scope is choice.scope
        ] or [choice]

    def _ahead(self, starts: list[Node]) -> Iterator[Node]:
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
        if node.primitive in _KERNELS:
            return True
        return node.primitive in _PRODUCTS and any(
            weight.is_given for _, weight in self._given(node)
        )

    def _given(self, node: Node) -> list[tuple[Node, Weight]]:
        """Operands of a node that are weights."""
        pairs = ((source, self._weights.of(source)) for source in node.of if is_float(source))
        return [(source, weight) for source, weight in pairs if weight is not None]

    def _stacks(self, node: Node, experts: int) -> list[Node]:
        """Operands of a node that hold a matrix for each expert, or some of those."""
        if node.primitive not in _PRODUCTS | _KERNELS | {"gather", "dynamic_slice"}:
            return []
        return [source for source, weight in self._given(node) if weight.has_stack_of(experts)]

    def _is_product_of(self, node: Node, experts: int) -> bool:
        return bool(self._stacks(node, experts))

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

    def _of_experts(self, experts: int) -> set[Node]:
        """What is made of the results of products with the stack of so many matrices."""
        known = self._results.get(experts)
        if known is None:
            starts = [
                node
                for node in self._graph.nodes
                if not node.is_backward
                and node.primitive in _PRODUCTS
                and self._is_product_of(node, experts)
            ]
            known = self._results[experts] = set(self._ahead(starts)) if starts else set()
        return known

    def _meets(self, node: Node, ahead: set[Node], results: set[Node]) -> bool:
        """Whether a node takes both, from different operands."""
        chosen = [source for source in node.of if source in ahead and source not in results]
        made = [source for source in node.of if source in results]
        return bool(chosen and made)
