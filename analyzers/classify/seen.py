"""What do names and flow tell of one op? Each is looked up once, when a rule asks.

`roles` tells the part by flow in the forward pass and `sites` in the rest, an instruction at a
time. Here those of the instructions inside an op that runs by itself, a fusion or a wrapper say,
become its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from moeprof.analyzers.classify.components import COLLECTIVES, EXCHANGES, MOE, is_joined, phase_of
from moeprof.analyzers.classify.names import MOE_CONTEXT, component_of, scopes
from moeprof.analyzers.classify.op_kinds import component_of_target, is_grouped_gemm
from moeprof.analyzers.classify.ragged import dense_fallback
from moeprof.analyzers.classify.roles import Role, find_roles
from moeprof.analyzers.classify.sites import (
    Sites,
    of_weights,
    of_whole,
    products_by_weight,
    settled,
)
from moeprof.analyzers.classify.told import Told, best_frames, best_name, is_library
from moeprof.hlo.program import OF_TORCH, Frame, Op, Program

_EXCHANGING = frozenset({"all_to_all", "ragged_all_to_all"})
_WAY = {
    "permute": "dispatch",
    "unpermute": "combine",
    "expert_elementwise": "collectives",
    "grouped_gemm": "collectives",
}
"""An exchange between devices at a step on the way of tokens; between products it is none."""


class OpRoles:
    """Roles of the ops of a program; ``told``: what its names tell, where flow bears them out.

    ``experts``: how many experts there are to choose from.
    """

    def __init__(self, program: Program) -> None:
        """Find the roles of all instructions of `program`."""
        self.program = program
        found = find_roles(program)
        self.told = Told(found)
        self.experts = found.anchors.experts
        self._sites = Sites(found, is_library)
        self._values = found.facts.values
        self._number = self._values.number
        self._expanded = dense_fallback(program).arrays
        self._origins = found.facts.origin
        products = products_by_weight(found)
        self._of_weights = of_weights(products)
        self._is_forward = found.facts.is_forward
        self._phases = found.facts.flowing_phases()
        self._settled = settled(found, self._sites, products)

    def of(self, op: Op) -> Role | None:
        """Of a fusion that of what decides in it."""
        found = self._of(op)
        is_way = self.program.opcodes(op) & EXCHANGES or op.primitive in _EXCHANGING
        if found is not None and is_way:
            way = _WAY.get(found.component)
            return Role(way, found.how) if way else found
        return found

    @cached_property
    def products(self) -> dict[str, tuple[int, int]]:
        """Places in the step of the first and the last product of each module of experts.

        Where calls are known in their order alone.
        """
        found: dict[str, tuple[int, int]] = {}
        for op in self.program.ops.values() if self.program.is_of_calls else ():
            if op.opcode == "dot" or is_grouped_gemm(op.target):
                module = experts_of(op.op_name)
                first, last = found.get(module, (op.schedule, op.schedule))
                found[module] = min(first, op.schedule), max(last, op.schedule)
        found.pop("", None)
        return found

    @cached_property
    def heads(self) -> frozenset[tuple[int, ...]]:
        """Dimensions of embeddings that are those of the head's weight too, where ops name lookups.

        A layer may have a weight of the same size: then the forward pass has more products of that
        size than lookups, and nothing tells which is the head's.
        """
        lookups, products = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
        for op in self.program.ops.values():
            if phase_of(op.op_name) in ("backward", "recompute"):
                continue
            if op.opcode == "gather" and "/aten::embedding/" in f"{op.op_name}/":
                lookups.update(table_dims(self.program, op, first=True))
            elif op.opcode == "dot" and op.op_name:
                products.update(table_dims(self.program, op))
        return frozenset(dims for dims, count in lookups.items() if products[dims] == count)

    def phase(self, op: Op, name: str) -> str:
        """Phase that its name states; without a name that of what it reads.

        A name may be joined from the forward pass and from what is behind the gradients: where it
        reads these, it runs there.
        """
        number = self._number.get(op.name)
        if not name:
            return self._phases[number] if number is not None else "other"
        stated = phase_of(name)
        is_behind = stated == "forward" and is_joined(name) and not self.is_before_gradients(op)
        return "other" if is_behind else stated

    def is_slice(self, op: Op) -> bool:
        """Whether it is a loop's own slice or store: who makes or reads it tells its part."""
        return self._sites.is_call(op) and self.program.only_moves(op)

    def is_before_gradients(self, op: Op) -> bool:
        """Whether nothing that it reads comes from the backward pass."""
        number = self._number.get(op.name)
        return number is None or self._is_forward[number]

    def _of(self, op: Op) -> Role | None:
        if op.name in self._expanded and not op.op_name:
            return Role("expert_elementwise", "flow")  # masks and layouts of ragged products
        if shown := self._of_weight(op):
            return shown
        if self.is_slice(op):
            return None
        wrapped = self.program.innermost(op)
        if wrapped.name != op.name:
            return self._of(wrapped)
        if op.opcode != "fusion":
            number = self._number.get(op.name)
            return self._settled[number] if number is not None else None
        inside = [
            self._number[member.name]
            for member in self.program.interior(op)
            if member.name in self._number
        ]
        return of_whole(self._values, inside, self._settled, op)

    def _of_weight(self, op: Op) -> Role | None:
        """Of what only shows one weight, a slice or a cast: the part of who multiplies by it."""
        number = self._number.get(op.name)
        weight = self._origins[number] if number is not None else None
        if weight is None or "concatenate" in self.program.opcodes(op):
            return None
        return self._of_weights.get(weight.name) if self.program.only_moves(op) else None


@dataclass(frozen=True)
class Seen:
    """An op as the rules see it. Names may stand for a component, or for `MOE_CONTEXT`."""

    program: Program
    roles: OpRoles
    op: Op

    @cached_property
    def opcodes(self) -> frozenset[str]:
        """Its own opcode, and those inside it."""
        return self.program.opcodes(self.op)

    @property
    def is_collective(self) -> bool:
        """Whether it moves data between devices."""
        return bool(self.opcodes & COLLECTIVES)

    @cached_property
    def name(self) -> str:
        """Its op_name, or the most telling one inside it."""
        return best_name(self.program, self.op)

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """Its lines of source, innermost first."""
        return best_frames(self.program, self.op)

    @cached_property
    def phase(self) -> str:
        """The phase that its name states, as of `OpRoles.phase`."""
        return self.roles.phase(self.op, self.name) if self.name else "other"

    @cached_property
    def role(self) -> Role | None:
        """Its part by how values flow."""
        return self.roles.of(self.op)

    @cached_property
    def target(self) -> str | None:
        """What the name of a custom call says that it is."""
        targets = (component_of_target(m.target) for m in self.program.interior(self.op))
        return next((component for component in targets if component), None)

    @cached_property
    def scope(self) -> str | None:
        """What the innermost telling scope stands for.

        Of calls no flow tells whether a feed-forward module in a MoE layer is its shared expert or
        one of those that are routed to: only that it is in the layer.
        """
        found = self.roles.told.by_scopes(self.name, self.frames)
        is_open = found == "dense_mlp" and self.program.is_of_calls
        around = (component_of(scope) for path in scopes(self.name) for scope in path)
        return MOE_CONTEXT if is_open and MOE_CONTEXT in around else found

    @cached_property
    def own_function(self) -> str | None:
        """What the function that it stands in, or a library's below that, stands for."""
        own = next((i for i, f in enumerate(self.frames) if not is_library(f)), 0) + 1
        return self._by_frames(self.frames[:own])

    @cached_property
    def function(self) -> str | None:
        """What the innermost telling function, class or file of all its lines stands for."""
        return self._by_frames(self.frames)

    @property
    def is_feed_forward(self) -> bool:
        """Whether its scope names a feed-forward layer that is not the experts'.

        Experts are feed-forward layers too: scope "ffn_act" in class RoutedMoE.
        """
        return self.scope == "dense_mlp" and self.function not in (MOE_CONTEXT, *MOE)

    @property
    def is_in_moe(self) -> bool:
        """Whether a scope or a function says that it is in the MoE layer."""
        return MOE_CONTEXT in (self.scope, self.function)

    def _by_frames(self, frames: tuple[Frame, ...]) -> str | None:
        in_moe = self.scope == MOE_CONTEXT
        return self.roles.told.by_frames(frames, self.phase, in_moe=in_moe)


def experts_of(op_name: str) -> str:
    """The path of an op of PyTorch up to the module of experts around it; empty for none."""
    elements = op_name.split("/")
    ends = [end for end, each in enumerate(elements) if component_of(each) == "grouped_gemm"]
    return "/".join(elements[: ends[0] + 1]) if ends and op_name.startswith(OF_TORCH) else ""


def table_dims(program: Program, op: Op, *, first: bool = False) -> frozenset[tuple[int, ...]]:
    """Dimensions, in order of size, of the matrices that an op reads, or of the first alone."""
    read = program.shapes_of(op)[: 1 if first else -1]
    return frozenset(tuple(sorted(shape.dims)) for shape in read if len(shape.dims) == 2)
