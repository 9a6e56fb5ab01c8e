"""Question: along which axes of a mesh may the shards of a value differ?

JAX tells it where it checks this (``vma`` of a type). Else it follows from how a value is made:
what enters differs as its sharding says, and a sum or a gather over an axis makes it the same.
"""

from __future__ import annotations

from typing import Any

from moeprof.recording.choices.graph import SHARD, Node, Scope, before

_SAME_EVERYWHERE = frozenset(
    {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant"}
)
_DIFFERENT = frozenset({"axis_index", "reduce_scatter", "psum_scatter", "all_to_all"})


def differs_along(node: Node, scope: Scope) -> set[str]:
    """Axes of the mesh of `scope` along which the value of a node inside it may differ."""
    known: dict[Node, set[str]] = {}
    inside = [one for one in reversed(list(before(node))) if scope in one.scope.chain()]
    changed = True
    while changed:  # a loop's state is made of what it becomes
        changed = False
        for one in inside:
            axes = _axes(one, scope, known)
            if axes != known.get(one):
                known[one] = axes
                changed = True
    return known.get(node, set()) | set(getattr(node.aval, "vma", ()) or ())


def _axes(node: Node, scope: Scope, known: dict[Node, set[str]]) -> set[str]:
    if node.primitive == SHARD and node.scope is scope:
        return named_axes(scope.eqn.params["in_specs"][node.slot])
    axes: set[str] = set().union(*(known.get(source, set()) for source in node.of))
    is_of_all = node.params.get("axis_index_groups") is None
    if node.primitive in _SAME_EVERYWHERE and is_of_all:
        return axes - _axis_names(node)
    return axes | _axis_names(node) if node.primitive in _DIFFERENT else axes


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
