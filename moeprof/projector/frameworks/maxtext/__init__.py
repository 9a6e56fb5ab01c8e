"""MaxText: its builds, options and suggestions; `account` lists its live tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, Phase, StageBreakdown
from moeprof.projector.framework import BORDERLINE
from moeprof.projector.frameworks.jax import JaxFramework, refuse_modules
from moeprof.projector.frameworks.jax_phases import checkpoint, restore
from moeprof.projector.frameworks.jax_step import Account
from moeprof.projector.frameworks.maxtext.account import ROCM
from moeprof.projector.frameworks.maxtext.release import UPSTREAM
from moeprof.projector.frameworks.suggestions import (
    Change,
    smaller_capacity,
    smaller_ragged_buffers,
)
from moeprof.projector.setting import Count, Degrees, Setting, degrees_of
from moeprof.specs.hardware import HardwareSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.stages import StageLayers
from moeprof.units import format_bytes

_ACCOUNTS = {"rocm-26.2": ROCM, "0.2.5": UPSTREAM}
"""By build: AMD's container, and the release, which lays weights out otherwise, as read from XLA's
plans for H100."""
_TILES = 8
_MADE_TOO = (
    "AI-Hypercomputer/maxtext 0.2.5, utils/maxtext_utils.py, setup_initial_state: the restored "
    "state is laid over one that jax.jit makes while both are there"
)


class MaxText(JaxFramework):
    """MaxText's train step."""

    name = "maxtext"
    title = "MaxText"
    lacks = ("sequence_parallel", "sync_free", "overlap")
    builds = tuple(_ACCOUNTS)
    fitted_on = ("mi355x",)
    compared_remats = ("none", "minimal_with_context", "save_out_proj", "full")

    def check(self, setting: Setting) -> None:
        """Refuse a build that there is none of, and another program's rematerialisation."""
        refuse_modules(setting)
        if setting.build not in self.builds:
            raise SpecError(
                f"maxtext_build: expected one of {', '.join(self.builds)}, found {setting.build!r}."
            )

    def build_for(self, hardware: HardwareSpec) -> str:
        """AMD's container on AMD, else the release; counts of both are of GPUs, not of TPUs."""
        return "rocm-26.2" if hardware.vendor == "AMD" else "0.2.5"

    def account(self, setting: Setting) -> Account:
        """The lists of the setting's build."""
        return _ACCOUNTS[setting.build or self.builds[0]]

    def gives_each_slot_a_row(self, setting: Setting) -> bool:
        """As AMD's container does; a layer with `moeprof.kernels` has rows of own experts alone."""
        return setting.build != "0.2.5"

    def is_plain_plan(
        self, setting: Setting, plan: ParallelPlan | Degrees, microbatches: Count
    ) -> Count:
        """No program for GPUs exchanges rows of a grouped GEMM but by DeepEP."""
        found = super().is_plain_plan(setting, plan, microbatches)
        is_exchanged = setting.strategy.kind == "sparse-gmm" and setting.build == "0.2.5"
        return found * (plan.expert == 1) if is_exchanged else found

    def phases(
        self,
        setting: Setting,
        degrees: Degrees,
        stage: StageLayers,
        step: StageBreakdown,
        *,
        with_host: bool = True,
    ) -> tuple[Phase, ...]:
        """With what Orbax does; the release makes a state although it has restored one."""
        found = list(super().phases(setting, degrees, stage, step, with_host=with_host))
        if "restore" in setting.phases:
            made_too = _MADE_TOO if setting.build == "0.2.5" else ""
            found.append(restore(setting, degrees, stage, step, made_too, with_host=with_host))
        if "checkpoint" in setting.phases:
            found.append(checkpoint(setting, degrees, stage, step, with_host=with_host))
        return tuple(found)

    def notes(self, breakdown: MemoryBreakdown) -> tuple[str, ...]:
        """What is said of every JAX step, and of another build."""
        return (*super().notes(breakdown), *self._other_build(breakdown))

    def suggestions(self, setting: Setting) -> Iterator[Change]:
        """Smaller buffers first."""
        yield from smaller_capacity(setting)
        yield from smaller_ragged_buffers(setting)
        yield from super().suggestions(setting)

    def of_loss(self, setting: Setting) -> Iterator[Change]:
        """A loss in tiles of the vocabulary."""
        if setting.vocab_tiling < _TILES:
            changed = replace(setting, vocab_tiling=_TILES)
            yield Change(f"num_vocab_tiling {_TILES}", "smaller products of the head", changed)

    def of_host(self, setting: Setting) -> Iterator[Change]:
        """Activations or the optimizer's state in the host's memory."""
        prices = {"activations": "copies per layer", "optimizer": "copies per step"}
        for name, price in prices.items():
            if name not in setting.offload:
                changed = replace(setting, offload=setting.offload | {name})
                yield Change(f"offload of {name} to the host", price, changed)

    def _other_build(self, found: MemoryBreakdown) -> tuple[str, ...]:
        """What the same run needs with another build, where that is much more or less."""
        setting = found.setting
        if setting.hardware.vendor == "Google":
            return (
                f"counts are those of MaxText {setting.build} on GPUs: of its steps for TPUs none "
                "was measured.",
            )
        build = next(name for name in self.builds if name != setting.build)
        changed = replace(setting, maxtext_build=build)
        stages = self.stages(changed, setting.plan.pipeline, setting.plan.virtual)
        degrees = degrees_of(changed)
        other = MemoryBreakdown(
            changed, tuple(self.breakdown(changed, degrees, stage) for stage in stages)
        )
        if found.temp_bytes is None or other.temp_bytes is None or not setting.model.experts:
            return ()
        if abs(other.temp_bytes / found.temp_bytes - 1) < BORDERLINE:
            return ()
        return (
            f"counts are those of MaxText {setting.build}; with {build} the step takes "
            f"{format_bytes(other.temp_bytes)} (maxtext_build).",
        )


FRAMEWORK = MaxText()
