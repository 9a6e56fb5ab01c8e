"""What do names and flow tell of one op? Each is looked up once, when a rule asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from moeprof.analyzers.classify.components import COLLECTIVES, MOE
from moeprof.analyzers.classify.names import MOE_CONTEXT
from moeprof.analyzers.classify.op_roles import OpRoles
from moeprof.analyzers.classify.phase import phase_of
from moeprof.analyzers.classify.roles import Role
from moeprof.analyzers.classify.targets import component_of_target
from moeprof.analyzers.classify.told import best_frames, best_name, is_library
from moeprof.hlo.program import Frame, Op, Program


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
        """The phase that its name states."""
        return phase_of(self.name)

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
        """What the innermost telling scope stands for."""
        return self.roles.told.by_scopes(self.name, self.frames)

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
