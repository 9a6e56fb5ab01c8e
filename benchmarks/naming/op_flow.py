"""How the instructions of one program hang together: where a value goes, and where it comes from.

A scorer must not ask the classifier that it scores, so this is a small graph of its own, built
from rows of ``hlo_ops``. A value is an instruction and its place in a tuple, None for all of it.
Tuples, loops, calls and branches are seen through; a fusion is one instruction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

LOOPS = frozenset({"while", "conditional", "call"})
SEEN_THROUGH = LOOPS | {
    *("tuple", "get-tuple-element", "parameter", "optimization-barrier"),
    *("async-start", "async-update", "async-done"),
}

Value = tuple[str, int | None]


@dataclass(frozen=True)
class Node:
    """An instruction of a program."""

    name: str
    computation: str
    is_root: bool
    opcode: str
    shape: str
    op_name: str
    frames: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    parameter: int
    index: int
    groups: str

    @property
    def base(self) -> str:
        """Opcode without the ``-start`` or ``-done`` of its asynchronous halves."""
        return self.opcode.removesuffix("-start").removesuffix("-done")


class Graph:
    """Instructions of one module by name."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """`rows` are those of a single module in ``hlo_ops``."""
        columns = rows.astype(object).itertuples(index=False)
        self.nodes = {node.name: node for node in map(_node, columns)}
        self.members: dict[str, list[Node]] = defaultdict(list)
        self.users: dict[str, list[Node]] = defaultdict(list)
        self.callers: dict[str, Node] = {}
        for node in self.nodes.values():
            self.members[node.computation].append(node)
            for operand in dict.fromkeys(node.operands):
                self.users[operand].append(node)
            for computation in node.called:
                self.callers[computation] = node

    def inside(self, node: Node) -> list[Node]:
        """Instructions that a fusion consists of, root first, each before its operands."""
        roots = [m for name in node.called for m in self.members[name] if m.is_root]
        found, waiting = dict.fromkeys(root.name for root in roots), list(roots)
        while waiting:
            member = waiting.pop(0)
            nested = self.inside(member) if member.opcode == "fusion" else []
            found |= dict.fromkeys(each.name for each in nested)
            fresh = [name for name in member.operands if name in self.nodes and name not in found]
            found |= dict.fromkeys(fresh)
            waiting += [self.nodes[name] for name in fresh]
        return [self.nodes[name] for name in found]

    def root(self, computation: str) -> Node | None:
        """The result of a computation."""
        return next((m for m in self.members[computation] if m.is_root), None)

    def after(self, value: Value) -> Iterator[Value]:
        """Where a value goes next."""
        name, index = value
        node = self.nodes[name]
        for user in self.users[name]:
            if user.opcode == "get-tuple-element":
                if index in (None, user.index):
                    yield user.name, None
            elif user.opcode == "tuple":
                yield from ((user.name, at) for at, o in enumerate(user.operands) if o == name)
            elif user.opcode in SEEN_THROUGH:
                yield user.name, index
                for at, operand in enumerate(user.operands):
                    if operand == name:
                        yield from ((p.name, index) for p in self._given(user, at))
            else:
                yield user.name, None
        caller = self.callers.get(node.computation)
        if node.is_root and caller is not None:
            yield caller.name, index
            if caller.opcode == "while":
                yield from ((p.name, index) for p in self._given(caller, 0))

    def before(self, value: Value) -> Iterator[Value]:
        """What a value is made of."""
        name, index = value
        node = self.nodes[name]
        if node.opcode == "get-tuple-element":
            yield node.operands[0], node.index
        elif node.opcode == "tuple" and index is not None:
            yield node.operands[index], None
        elif node.opcode == "parameter":
            caller = self.callers.get(node.computation)
            if caller is None or caller.opcode not in SEEN_THROUGH:
                return
            place = node.parameter
            if caller.opcode == "conditional":
                place = 1 + caller.called.index(node.computation)
            if place < len(caller.operands):
                yield caller.operands[place], index
            if caller.opcode == "while" and (root := self.root(node.computation)):
                yield root.name, index
        elif node.opcode in SEEN_THROUGH - {"tuple"}:
            roots = [root for each in node.called if (root := self.root(each))]
            if node.opcode == "while":
                roots = [root for root in roots if root.shape != "pred[]"]  # not its condition
            yield from ((root.name, index) for root in roots)
            if node.opcode == "while" or not roots:
                yield from ((operand, index) for operand in node.operands)
        else:
            yield from ((operand, None) for operand in node.operands if operand in self.nodes)

    def _given(self, caller: Node, place: int) -> Iterator[Node]:
        """Parameters that stand for an operand inside of what an instruction calls."""
        for number, computation in enumerate(caller.called):
            if caller.opcode == "conditional" and number != place - 1:
                continue
            wanted = 0 if caller.opcode == "conditional" else place
            for member in self.members[computation]:
                if member.opcode == "parameter" and member.parameter == wanted:
                    yield member


def _node(row: object) -> Node:
    told: dict[str, object] = row._asdict()
    details = dict(part.partition("=")[::2] for part in str(told["details"]).split())
    return Node(
        name=str(told["op"]),
        computation=str(told["computation"]),
        is_root=bool(told["is_root"]),
        opcode=str(told["opcode"]),
        shape=str(told["shape"]),
        op_name=str(told["op_name"]),
        frames=str(told["frames"]),
        operands=tuple(str(told["operands"]).split()),
        called=tuple(str(told["called"]).split()),
        parameter=int(str(told["parameter"])),
        index=int(details.get("index", -1)),
        groups=str(told["replica_groups"]),
    )
