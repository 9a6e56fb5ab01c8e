"""Megatron-LM, and Primus on top of it: plans, options and suggestions of a program in PyTorch.

`account` says what a stage holds, from the tensors of `layer`, the moments of `peaks` and the
groups of `ranks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from moeprof.errors import SpecError
from moeprof.projector.breakdown import (
    MemoryBreakdown,
    Peak,
    Phase,
    Row,
    StageBreakdown,
    total,
)
from moeprof.projector.framework import NOT_MEASURED, ErrorBand, Framework
from moeprof.projector.frameworks.megatron import account
from moeprof.projector.frameworks.suggestions import Change, other_precision, recomputation
from moeprof.projector.setting import Degrees, Precision, Setting
from moeprof.specs.model import ModelSpec
from moeprof.specs.plan import MEGATRON_AXES, ParallelPlan
from moeprof.specs.plan_checks import Batch, check_megatron_plan
from moeprof.specs.stages import StageLayers

MIXED_PRECISION = Precision(
    compute="bfloat16",
    weights="bfloat16",
    master="float32",
    first_moment="float32",
    second_moment="float32",
    gradients="float32",
)
"""``--bf16`` of Megatron-LM: float32 gradients, master weights and moments."""


class Megatron(Framework):
    """A step of Megatron-LM."""

    name = "megatron"
    title = "Megatron-LM"
    lacks = (
        "vocab_tiling",
        "ragged_buffer_factor",
        "mem_fraction",
        "compute_dtype",
        "is_scanned",
        "has_float32_weight_sum",
    )
    axes = MEGATRON_AXES
    batch_axes = ("data", "fsdp")
    open_degrees = ("dp",)
    sequence_pieces = 2
    schedules = ("1f1b", "interleaved")
    searched_schedule = "1f1b"
    runs_stages_as_one = False
    keeps_global_batch = True
    strategies = ("sparse-gmm", "sparse-gmm-deepep")  # its all-to-all, its flexible dispatcher
    searched_remats = ("none", "full")
    compared_remats = ("none", "selective:core_attn", "selective:moe_act,layernorm", "full")
    compares_products = False
    smaller_loss = "fused"
    has_pool = False
    allocates_what_arrives = True
    gathers_weights = False
    launches_each_kernel = True
    overlaps_exchange = True

    def check(self, setting: Setting) -> None:
        """Refuse a TPU."""
        super().check(setting)
        if setting.hardware.vendor == "Google":
            raise SpecError(
                f"framework megatron: Megatron-LM runs on GPUs, found {setting.hardware.name}. "
                "Choose framework maxtext."
            )

    def check_plan(
        self, plan: ParallelPlan, model: ModelSpec, devices: int | None, batch: Batch
    ) -> None:
        """Refuse a plan that its groups cannot be."""
        check_megatron_plan(plan, model, devices, batch)

    def precision(self, asked: Mapping[str, str], weights: str) -> Precision:
        """Its mixed precision; the configuration of a model does not move it."""
        return Precision(**(asdict(MIXED_PRECISION) | dict(asked)))

    def worst_overload(self, setting: Setting) -> float | None:
        """A token has at most min(E / EP, K) experts on a rank."""
        model = setting.model
        return float(min(setting.plan.expert, max(model.experts / model.top_k, 1)))

    def room(self, breakdown: MemoryBreakdown, stage: StageBreakdown) -> float:
        """PyTorch's cache grows with what is allocated, and is no part of its pool."""
        others = [row for row in stage.outside if row.name != account.CACHE_ROW]
        if len(others) == len(stage.outside):
            return breakdown.pool_bytes
        size = total(others)
        assert size is not None
        return (breakdown.device_bytes - float(size)) / (1 + account.CACHE_SHARE)

    def error_band_of(
        self, setting: Setting, end: str = "", *, is_far: bool, is_plain: bool
    ) -> ErrorBand:
        """Of its own account; Primus's is no estimate of a run, torchtitan's was not measured."""
        if setting.megatron.account == "megatron" or end:
            return super().error_band_of(setting, end, is_far=is_far, is_plain=is_plain)
        return ErrorBand(0.0 if setting.megatron.account == "primus" else NOT_MEASURED, "total")

    def stages(self, setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
        """The layers of each stage, all its chunks together."""
        return account.stages_of(setting, pipeline, virtual)

    def breakdown(self, setting: Setting, degrees: Degrees, stage: StageLayers) -> StageBreakdown:
        """What a stage holds beside what PyTorch's allocator and libraries take."""
        return account.stage_breakdown(setting, degrees, stage)

    def phases(
        self,
        setting: Setting,
        degrees: Degrees,
        stage: StageLayers,
        step: StageBreakdown,
        *,
        with_host: bool = True,
    ) -> tuple[Phase, ...]:
        """Start, restore, evaluation, checkpoint; none of Primus's own account."""
        if setting.megatron.account == "primus":
            return ()
        beside = account.without_cache(step)
        every = (
            _start(setting, step),
            Phase("restore", step.args, (_unknown(*_LOADED),), beside),
            Phase("evaluation", step.args, (_unknown(*_FORWARD),), beside),
            Phase("checkpoint", step.args, (), beside),
        )
        found = tuple(one for one in every if one.name in setting.phases)
        if not with_host:
            return found
        copied = {"checkpoint": (_copies(setting, degrees, stage),)}
        kept = self.on_host(setting, degrees, stage)
        return tuple(replace(one, host=(*kept, *copied.get(one.name, ()))) for one in found)

    def on_host(self, setting: Setting, degrees: Degrees, stage: StageLayers) -> tuple[Row, ...]:
        """Moments that were moved to the host."""
        return account.offloaded_moments(setting, degrees, stage)

    def notes(self, breakdown: MemoryBreakdown) -> tuple[str, ...]:
        """What an account of Megatron assumed."""
        return account.notes_on(breakdown)

    def suggestions(self, setting: Setting) -> Iterator[Change]:
        """A fused loss, narrower formats, recomputation, another plan."""
        if not setting.has_fused_loss:
            changed = replace(setting, has_fused_loss=True)
            yield Change("fused loss", "needs TransformerEngine's loss", changed)
        yield from other_precision(setting)
        yield from recomputation(setting)
        yield from _other_plan(setting)


# Phases beside the step. Outside the allocator all have what the step has but its cache.

_BUFFERS = (
    "Megatron-LM, core/distributed/param_and_grad_buffer.py: each weight is copied into the buffer"
)
_STAGED = (
    "Megatron-LM, core/dist_checkpointing/strategies/filesystem_async.py, preload_tensors: all "
    "buckets of a rank before the first is written; 650 GB of a node of 4 GB300 for 744 B "
    "parameters (radixark/Megatron-LM, pull request 61)"
)


def _start(setting: Setting, step: StageBreakdown) -> Phase:
    """Weights, gradients, master copies: moments come with the first step."""
    held = tuple(row for row in step.args if not row.name.startswith(account.MOMENTS))
    peaks: tuple[Peak, ...] = ()
    if setting.has_distributed_optimizer:
        old = [row for row in held if row.kind == "params"]
        copies = tuple(
            replace(row, name=f"{row.name}, before the buffer", pool="temp", source=_BUFFERS)
            for row in old
        )
        masters = tuple(row for row in held if row.name.startswith("master weights"))
        held = tuple(row for row in held if row not in masters)
        masters = tuple(replace(row, pool="temp") for row in masters)
        peaks = (Peak("weights move into their buffer", copies), Peak("master weights", masters))
    return Phase("start", held, peaks, account.without_cache(step))


_LOADED = (
    "what a load reads into before it is copied",
    "cannot estimate: depends on --ckpt-format and --ckpt-fully-parallel-load",
)
_FORWARD = (
    "activations of a forward pass",
    "cannot estimate: no forward pass alone was measured; the step's keeps more",
)


def _unknown(name: str, formula: str) -> Peak:
    row = Row(name, "temp", "temporaries", None, formula, "none known", "unknown")
    return Peak(name, (row,))


def _copies(setting: Setting, degrees: Degrees, stage: StageLayers) -> Row:
    """Of a node's ranks in host memory: weights, master weights, moments, each once."""
    size, formula = account.checkpoint_bytes(setting, degrees, stage)
    name = "shards copied from the devices"
    return Row(name, "host", "host copies", size, formula, _STAGED, "high")


def _other_plan(setting: Setting) -> Iterator[Change]:
    """Another plan of as many devices; experts take none of their own."""
    plan = setting.plan
    ranks = plan.data * plan.fsdp * plan.context * plan.tensor
    wider = replace(plan, expert=plan.expert * 2)
    fits_ranks = ranks % (wider.expert * plan.expert_tensor) == 0
    if setting.model.experts and setting.model.experts % wider.expert == 0 and fits_ranks:
        changed = replace(setting, plan=wider)
        yield Change(f"EP {wider.expert}", "tokens travel further", changed)
    if plan.data % 2 == 0 and setting.sequence is not None:
        longer = replace(plan, context=plan.context * 2, data=plan.data // 2)
        changed, price = replace(setting, plan=longer), "half the tokens per step, keys exchanged"
        yield Change(f"CP {longer.context}, DP {longer.data}", price, changed)


FRAMEWORK = Megatron()
