"""Question: what have all programs of JAX in common, and what is said of their projections?"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, Phase, Row, StageBreakdown, total
from moeprof.projector.framework import BORDERLINE, Framework
from moeprof.projector.frameworks.jax_phases import start, state_of, state_on_host, step_on_host
from moeprof.projector.frameworks.jax_step import Account, evaluation_peaks, stage_breakdown
from moeprof.projector.frameworks.suggestions import (
    Change,
    other_exchange,
    other_plan,
    other_precision,
    recomputation,
)
from moeprof.projector.setting import Degrees, Precision, Setting, degrees_of, linear_layers_note
from moeprof.projector.shares import buffer_factor, stages_of
from moeprof.projector.state import offloaded_rows
from moeprof.specs.stages import StageLayers, split_stages, stage_parameters, whole_stages
from moeprof.units import format_bytes


def refuse_modules(setting: Setting) -> None:
    """Refuse a policy that names Megatron-LM's modules: nothing of a JAX program is called so.

    Raises:
        SpecError: with what may stand there.
    """
    if setting.plan.remat.recomputed_modules:
        raise SpecError(
            f"remat {setting.plan.remat.text}: expected a policy of MaxText or save:NAME,…, as "
            "selective:MODULE,… is of Megatron-LM. Choose one, or give --framework megatron."
        )


class JaxFramework(Framework):
    """A program that XLA compiles as a whole, for a share of the device."""

    def check(self, setting: Setting) -> None:
        """Refuse what is another program's: its build, its rematerialisation."""
        super().check(setting)
        refuse_modules(setting)

    @abstractmethod
    def account(self, setting: Setting) -> Account:
        """The lists of live tensors."""

    def has_library_end(self, setting: Setting) -> bool:
        """Whether the account lists what is alive then."""
        return self.account(setting).libraries is not None

    def precision(self, asked: Mapping[str, str], weights: str) -> Precision:
        """All that is kept follows the weights (optax, zeros_like)."""
        weights = asked.get("weights", weights)
        kept = dict.fromkeys(("first_moment", "second_moment", "gradients"), weights)
        return Precision(**({"weights": weights} | kept | dict(asked)))

    def stages(self, setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
        """What each stage of a pipeline holds."""
        return stages_of(setting, pipeline, virtual)

    def breakdown(self, setting: Setting, degrees: Degrees, stage: StageLayers) -> StageBreakdown:
        """What fills one stage, by the account."""
        return stage_breakdown(self.account(setting), setting, degrees, stage)

    def is_plain(self, setting: Setting) -> bool:
        """Steps that were compiled: AdamW, attention by blocks, all layers recomputed alike."""
        unusual = (
            setting.optimizer != "adamw",
            setting.attention != "flash",
            setting.offload,
            setting.vocab_tiling > 1,
            setting.precision.experts is not None,
            setting.precision.master is not None,
            setting.precision.compute != "bfloat16",
            setting.recomputed_layers is not None,
            setting.has_fused_loss,
            not setting.is_scanned,
        )
        return not any(unusual)

    def phases(
        self,
        setting: Setting,
        degrees: Degrees,
        stage: StageLayers,
        step: StageBreakdown,
        *,
        with_host: bool = True,
    ) -> tuple[Phase, ...]:
        """Start and evaluation; who has checkpoints adds what Orbax does."""
        drawn: tuple[Row, ...] = ()
        kept: tuple[Row, ...] = ()
        if with_host:
            drawn = self.drawn_on_host(setting, stage)
            kept = state_on_host(self.on_host(setting, degrees, stage))
        at_evaluation = degrees
        if setting.eval_pdbs is not None:
            at_evaluation = degrees._replace(pdbs=setting.eval_pdbs)
        found = []
        if "start" in setting.phases:
            found.append(start(step, (*drawn, *kept)))
        if "evaluation" in setting.phases:
            peaks = evaluation_peaks(self.account(setting), setting, at_evaluation, stage)
            found.append(Phase("evaluation", state_of(step), peaks, step.outside, kept))
        return tuple(found)

    def on_host(self, setting: Setting, degrees: Degrees, stage: StageLayers) -> tuple[Row, ...]:
        """What was moved to the host's memory."""
        return step_on_host(self.account(setting), setting, degrees, stage)

    def drawn_on_host(self, setting: Setting, stage: StageLayers) -> tuple[Row, ...]:
        """What the start makes on a host before it is on devices; nothing."""
        return ()

    def notes(self, breakdown: MemoryBreakdown) -> tuple[str, ...]:
        """Sentences on a breakdown of a JAX step."""
        found = (note(breakdown) for note in _NOTES)
        return tuple(sentence for sentence in found if sentence)

    def suggestions(self, setting: Setting) -> Iterator[Change]:
        """What every program of JAX can change."""
        yield from other_exchange(setting)
        yield from self.of_loss(setting)
        yield from other_precision(setting)
        yield from recomputation(setting)
        yield from self.of_host(setting)
        yield from other_plan(setting)

    def of_loss(self, setting: Setting) -> Iterator[Change]:
        """Another loss; none."""
        return iter(())

    def of_host(self, setting: Setting) -> Iterator[Change]:
        """What can move to the host's memory; nothing."""
        return iter(())


# Notes: what a projection assumed, and what it cannot know.

SLOP = 0.95
"""Share of what is left of the pool that XLA's scheduler aims at
(xla_gpu_memory_limit_slop_factor 95)."""


def _unknown(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    missing = [name for name in ("sequence", "pdbs") if getattr(setting, name) is None]
    return f"cannot estimate activations: {' and '.join(missing)} not given." if missing else ""


def _elastic(breakdown: MemoryBreakdown) -> str:
    args, temp = breakdown.args_bytes, breakdown.temp_bytes
    if args is None or temp is None:
        return ""
    budget = SLOP * (breakdown.pool_bytes - args)
    excess = args + temp - breakdown.pool_bytes
    if temp <= budget or excess > BORDERLINE * breakdown.pool_bytes:
        return ""
    return (
        f"the step's natural size {format_bytes(temp)} is above the {format_bytes(budget)} that "
        "XLA's scheduler aims at (0.95 of what the arguments leave): it reorders and recomputes "
        "to get below, so the run's own figure lies near that and is not sharp."
    )


def _worst_case(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    model = setting.model
    is_sparse = model.experts and setting.strategy.kind != "dense"
    if not is_sparse or setting.ragged_buffer_factor or setting.overload:
        return ""
    factor = buffer_factor(setting, degrees_of(setting))
    sentence = f"dropless buffers hold the worst routing, {factor:g}× the rows of an even one"
    if "ragged_buffer_factor" in setting.program.lacks:
        return f"{sentence}."
    return f"{sentence}; ragged_buffer_factor makes them smaller, and rows beyond are dropped."


def _saved_buffers(breakdown: MemoryBreakdown) -> str:
    saved = [
        row
        for row in breakdown.rows
        if row.is_routed and row.kind == "activations" and row.size_bytes is not None
    ]
    size = total(saved)
    if not size or float(size) < 0.5 * breakdown.pool_bytes:
        return ""
    return (
        f"remat {breakdown.setting.plan.remat.text} keeps whole dispatch buffers of every layer: "
        f"{format_bytes(float(size))} of worst-case rows."
    )


def _offloaded(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    if "optimizer" not in setting.offload:
        return ""
    plan = setting.plan
    chunks = split_stages(
        setting.model, plan.pipeline, plan.virtual, setting.layers_per_stage, setting.schedule
    )
    stage = whole_stages(chunks)[breakdown.worst.stage]
    held = stage_parameters(setting.model, stage)
    size = total(offloaded_rows(setting, degrees_of(setting), held))
    return f"optimizer state in the host's memory: {format_bytes(float(size or 0))} per device."


def _unscanned(breakdown: MemoryBreakdown) -> str:
    if breakdown.setting.is_scanned:
        return ""
    return (
        "layers are not scanned: counts are those of scanned layers; without the loop XLA may "
        "gather the weights of several layers at once."
    )


def _schedule(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    if setting.plan.pipeline == 1 or setting.schedule in ("gpipe", "circular"):
        return ""
    return (
        f"schedule {setting.schedule} is that of one's own program: MaxText's pipeline is "
        "circular (GPipe's order), which holds all microbatches."
    )


def _precision(setting: Setting) -> str:
    wide = setting.precision.weights != setting.model.weight_dtype
    return (
        f"weights in {setting.precision.weights} as asked; the model's configuration says "
        f"{setting.model.weight_dtype}."
        if wide
        else ""
    )


_NOTES: tuple[Callable[[MemoryBreakdown], str], ...] = (
    _unknown,
    _elastic,
    _worst_case,
    _saved_buffers,
    lambda breakdown: linear_layers_note(breakdown.setting.model),
    _offloaded,
    _unscanned,
    _schedule,
    lambda breakdown: _precision(breakdown.setting),
)
