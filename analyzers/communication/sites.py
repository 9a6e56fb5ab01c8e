"""Question: what does each collective of a program send, among which devices, for which mesh axis?

Bytes come from the shapes of the operands, so every dtype that has a size counts. They follow the
convention of NVIDIA's nccl-tests (doc/PERFORMANCE.md): S is what a device holds of the whole
message, which for an all-gather is the gathered result. The axis follows from the groups where the
run's mesh is known, else from what is carried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.classify.components import COLLECTIVES
from moeprof.analyzers.classify.op_kinds import exchange_of
from moeprof.hlo.instruction import Groups
from moeprof.hlo.program import Op, Program
from moeprof.tables.trace import MeshAxis, Trace

NOT_KNOWN = -1

_POINT_TO_POINT = frozenset({"send", "recv"})
_GROUPED = COLLECTIVES - {"collective-permute"}
_BESIDE_DATA = ["u32[]", "token[]"]
"""Context and token of a transfer, behind its data."""
_CONTEXT_BYTES = 4
_EP_SIZE = re.compile(r"\bep_size = (\d+)")
_EP_GROUPS = re.compile(
    r"\bep_groups = dense<(?:\"0x(?P<bytes>(?:[0-9A-Fa-f]{16})+)\"|(?P<list>[\d\s,\[\]]+))>"
)
_DEEPEST = 4


@dataclass(frozen=True)
class Site:
    """One collective in a program.

    ``bytes`` is S, `NOT_KNOWN` where the shapes do not say it; ``bytes_bound`` is the most that
    it can be, equal to ``bytes`` where those are known. ``groups`` holds ranks; it is empty for
    point-to-point transfers, which know pairs and no groups, and where nothing tells how many
    devices take part.
    """

    row: int
    module: int
    op: str
    opcode: str
    groups: Groups
    bytes: int
    bytes_bound: int

    @property
    def group_size(self) -> int:
        """Devices in the largest group; 0 where there are no groups."""
        return max(map(len, self.groups), default=0)

    @property
    def is_grouped(self) -> bool:
        """Whether all devices of a group take part together, be the groups known or not."""
        return self.opcode in _GROUPED or bool(self.groups)


def sites_of(trace: Trace, rows: Iterable[int], ranks: Mapping[int, int]) -> list[Site]:
    """The collectives among the given rows of ``hlo_ops``, in order of row.

    Args:
        trace: the trace.
        rows: rows that device work resolves to; those without a collective are left out.
        ranks: by module the devices that run it together, which form the one group of ops that
            name none; a module that is not in it runs on nobody knows how many.
    """
    ops = trace.table("hlo_ops")
    found = []
    for row in sorted(set(rows)):
        module, name = int(ops["module"][row]), ops["op"][row]
        program = trace.programs[module]
        inner = _collective(program, program.ops[name], 0)
        if inner is not None:
            found.append(_Known(program, inner, ranks.get(module, 0)).site(row, module, name))
    return found


def message_bytes(opcode: str, operand_bytes: int, group_size: int) -> int:
    """S of nccl-tests from the bytes that each device puts in; `NOT_KNOWN` stays that."""
    if operand_bytes != NOT_KNOWN and opcode == "all-gather":
        return operand_bytes * group_size if group_size else NOT_KNOWN
    return operand_bytes


def groups_of(named: Groups, ranks: int) -> Groups:
    """Groups of ranks: those that are named; where none is, one of all `ranks`.

    Of none where `ranks` is 0, as how many there are is not known, or where the groups are written
    in a form that is not known: those are no group of all.
    """
    if named:
        return tuple(group for group in named if group)
    return (tuple(range(ranks)),) if ranks > 0 else ()


def groups_of_call(backend_config: str, ranks: int) -> Groups:
    """Groups of a token exchange by custom call; none where its attributes do not tell them.

    They do where they name each of the `ranks` devices of the program once: with several
    processes a call numbers those of its own.

    ``ep_groups`` lists the ranks of all groups, ``ep_size`` of them in each, as in
    ``{ep_groups = dense<[0, 2, 1, 3]> : tensor<4xi64>, ep_size = 2 : i64}``: {0,2} and {1,3}.
    MLIR prints long lists as bytes in hexadecimal.
    """
    size, listed = _EP_SIZE.search(backend_config), _EP_GROUPS.search(backend_config)
    if size is None or listed is None:
        return ()
    if listed["bytes"]:
        members = np.frombuffer(bytes.fromhex(listed["bytes"]), "<i8").tolist()
    else:
        members = [int(rank) for rank in re.findall(r"\d+", listed["list"])]
    each = int(size[1])
    if not each or len(members) % each or sorted(members) != list(range(ranks)):
        return ()
    return tuple(tuple(members[at : at + each]) for at in range(0, len(members), each))


def _collective(program: Program, op: Op, depth: int) -> Op | None:
    """The op itself, or the one in the computation that an async start or fusion wraps.

    None for any other, the second half of a pair, too.
    """
    opcode = op.opcode.removesuffix("-start")
    if opcode in COLLECTIVES | _POINT_TO_POINT:
        return op
    if opcode == "custom-call":
        return op if exchange_of(op.target) else None
    if opcode not in ("async", "fusion") or depth == _DEEPEST:
        return None
    inside = (member for name in op.called for member in program.members.get(name, ()))
    found = (_collective(program, member, depth + 1) for member in inside)
    return next((collective for collective in found if collective is not None), None)


@dataclass(frozen=True)
class _Known:
    """A collective with its program, which ``ranks`` devices run together."""

    program: Program
    op: Op
    ranks: int

    def site(self, row: int, module: int, name: str) -> Site:
        """The collective as the site of the op of that name, which it is or which wraps it."""
        opcode = self.op.opcode.removesuffix("-start")
        groups = groups_of(self.op.groups, self.ranks) if opcode in _GROUPED else ()
        if opcode == "custom-call":
            groups = groups_of_call(self.op.config, self.ranks)
        size = max(map(len, groups), default=0)
        bound = message_bytes(opcode, self._operand_bytes(opcode), size)
        is_known = opcode not in ("ragged-all-to-all", "custom-call")
        return Site(
            row=row,
            module=module,
            op=name,
            opcode=opcode,
            groups=groups,
            bytes=bound if is_known else NOT_KNOWN,
            bytes_bound=bound,
        )

    def _operand_bytes(self, opcode: str) -> int:
        """What a device puts in; `NOT_KNOWN` for an unknown operand, dtype or custom call."""
        if opcode == "recv":
            return self._received_bytes()
        names = self.op.operands
        if opcode == "ragged-all-to-all":
            names = names[:1]  # input, then the output buffer, offsets and sizes
        operands = [self.program.ops.get(name) for name in names]
        sizes = [_size(operand) for operand in operands if operand is not None]
        if opcode == "custom-call" or not sizes or None in operands or NOT_KNOWN in sizes:
            return NOT_KNOWN
        return sum(sizes)

    def _received_bytes(self) -> int:
        """What a ``recv`` brings: it puts in nothing but a token.

        Its result is (data, context, token), of which only the data crosses a link.
        """
        size, parts = _size(self.op), self.op.result.parts
        if [part.text for part in parts[-2:]] != _BESIDE_DATA or size <= _CONTEXT_BYTES:
            return NOT_KNOWN
        return size - _CONTEXT_BYTES


def _size(op: Op) -> int:
    """Bytes of a result; `NOT_KNOWN` where a part of it has a type of unknown size."""
    is_known = all(leaf.is_known for leaf in op.result.leaves)
    return op.size_bytes if is_known and op.size_bytes >= 0 else NOT_KNOWN


def axes_of(groups: Groups, mesh: Sequence[MeshAxis]) -> str:
    """Names of the axes of a mesh whose groups these are, ``fsdp × expert``; empty where none are.

    A compiled program numbers its devices in the order of the mesh, the last axis fastest, which
    devices these may be. All of them have to be in the groups: a program on fewer devices, or on
    more, runs on another mesh.
    """
    axes = [axis for axis in mesh if axis.size > 1]
    shape = [axis.size for axis in axes]
    ranks = sorted(rank for group in groups for rank in group)
    if not axes or ranks != list(range(prod(shape))):
        return ""
    wanted, places = {frozenset(group) for group in groups}, np.arange(len(ranks)).reshape(shape)
    for count in range(1, len(axes) + 1):
        for chosen in combinations(range(len(axes)), count):
            size = prod(shape[at] for at in chosen)
            rows = np.moveaxis(places, chosen, range(-count, 0)).reshape(-1, size)
            if {frozenset(row) for row in rows.tolist()} == wanted:
                return " × ".join(axes[at].name for at in chosen)
    return ""


AXES = {
    "tokens": "EP: dispatch and combine",
    "weights": "FSDP: gathered weights, scattered gradients",
    "sums": "DP: sums over replicas",
}
"""What is carried -> the axis that usually asks for it."""

_KINDS = {"all-gather": "weights", "reduce-scatter": "weights", "all-reduce": "sums"}
_WAYS = frozenset({"dispatch", "combine"})


def carried_by_site(trace: Trace, sites: Sequence[Site]) -> list[str]:
    """Tokens, weights, sums or other, by place of the site."""
    classes = classes_of(trace).rows("module", "op", "component")
    components = {(module, op): component for module, op, component in classes}
    return [
        "tokens"
        if components.get((site.module, site.op)) in _WAYS
        else _KINDS.get(site.opcode, "other")
        for site in sites
    ]
