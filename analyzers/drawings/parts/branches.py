"""Question: how do amounts with paths become one tree that is small enough to draw?

Sums are whole numbers, so that a node is exactly its own part and its children, however many of
them are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

DEEPEST = 64
"""Names of a path that are kept; what lies deeper counts to the last of them."""


class Amount(NamedTuple):
    """Work at the end of a path, outermost name first; `part` is its component and phase."""

    path: tuple[str, ...]
    ns: int
    calls: int
    part: tuple[str, str]


class Leading(NamedTuple):
    """What most of a node is: a component with its time, and its main phase with its time."""

    component: str
    component_ns: int
    phase: str
    phase_ns: int


@dataclass
class Branch:
    """A node: its time with all below it, its own, and the time of each part below it."""

    name: str
    ns: int = 0
    own_ns: int = 0
    calls: int = 0
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)
    below: dict[str, Branch] = field(default_factory=dict)

    def leading(self) -> Leading:
        """The component with most of its time and its main phase; of equal ones the first."""
        by_component: Counter[str] = Counter()
        for (component, _phase), ns in self.parts.items():
            by_component[component] += ns
        most = _most(by_component)
        phases = {phase: ns for (component, phase), ns in self.parts.items() if component == most}
        phase = _most(phases)
        return Leading(most, by_component[most], phase, phases.get(phase, 0))

    def add(self, amount: Amount) -> None:
        """Count an amount that lies in this node or below it."""
        self.ns += amount.ns
        self.calls += amount.calls
        self.parts[amount.part] += amount.ns


def _most(amounts: Mapping[str, int]) -> str:
    return min(amounts, key=lambda name: (-amounts[name], name), default="")


def grown(name: str, amounts: Iterable[Amount]) -> Branch:
    """The tree of all amounts below one root."""
    root = Branch(name)
    for amount in amounts:
        branch = root
        branch.add(amount)
        for step in amount.path[:DEEPEST]:
            branch = branch.below.setdefault(step, Branch(step))
            branch.add(amount)
        branch.own_ns += amount.ns
    return root


def pruned(branch: Branch, least_ns: int) -> Branch:
    """The tree with the children of each node that are smaller than `least_ns` merged into one.

    A small child that is the only one keeps its name, and loses what is below it.
    """
    large = [pruned(child, least_ns) for child in branch.below.values() if child.ns >= least_ns]
    small = [child for child in branch.below.values() if child.ns < least_ns]
    rest = [_merged(small)] if small else []
    ordered = sorted(large, key=lambda child: (-child.ns, child.name))
    return Branch(
        branch.name,
        branch.ns,
        branch.own_ns,
        branch.calls,
        branch.parts,
        {child.name: child for child in [*ordered, *rest]},
    )


def _merged(small: list[Branch]) -> Branch:
    name = small[0].name if len(small) == 1 else f"… {len(small)} smaller"
    parts: Counter[tuple[str, str]] = Counter()
    for child in small:
        parts.update(child.parts)
    total_ns = sum(child.ns for child in small)
    return Branch(name, total_ns, total_ns, sum(child.calls for child in small), parts)


def with_trunk(root: Branch) -> Branch:
    """The tree with the calls that lead to all of its largest child as one node, named by all.

    They are the way from the script to the step: without them what branches gets the room.
    """
    if not root.below:
        return root
    first, *others = root.below.values()
    names = [first.name]
    while len(first.below) == 1 and not first.own_ns:
        (first,) = first.below.values()
        names.append(first.name)
    trunk = replace(first, name=" › ".join(names))
    return replace(root, below={child.name: child for child in (trunk, *others)})


class Row(NamedTuple):
    """A node with its number and that of its parent, -1 for the root; parents come first."""

    node: int
    parent: int
    branch: Branch


def rows(root: Branch) -> Iterator[Row]:
    """Every node of a tree, depth first."""
    stack, node = [(root, -1)], 0
    while stack:
        branch, parent = stack.pop()
        yield Row(node, parent, branch)
        stack += [(child, node) for child in reversed(branch.below.values())]
        node += 1
