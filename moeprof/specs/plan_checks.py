"""Question: does a plan fit the model, the devices and the batch, and which choices would?

Some rules hold wherever a plan runs (`broken_rules`), the rest belongs to one of two worlds. In JAX
every axis is a factor of the devices. In Megatron-LM the devices are TP · CP · PP · DP, and experts
lie inside TP · CP · DP, which EP · ETP must divide (Liu et al. 2025, "MoE Parallel Folding", arXiv
2504.14960, section 3.2).

A complaint names both numbers and the choices there are. A remark is about what is legal and does
not go without saying.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from moeprof.errors import PlanError, SpecError
from moeprof.specs.model import GqaSpec, ModelSpec, divisors
from moeprof.specs.plan import ALL_AXES, AXES, MEGATRON_AXES, ParallelPlan
from moeprof.specs.schedule import Schedule, few_microbatches
from moeprof.specs.stages import even_split

_GROUPED = ("1f1b", "interleaved")
"""Schedules that, with several chunks per stage, take microbatches in groups of the stages."""
_FOR_SEVERAL = {"1f1b": "interleaved", "gpipe": "circular"}
_EVEN = ("gpipe", "circular")
"""Schedules of one program for all stages (MaxText), which must be alike."""


@dataclass(frozen=True)
class Batch:
    """What goes through the devices in one step; None: not asked.

    ``sequence`` tokens; ``pdbs`` sequences per device and microbatch; ``device_batch`` sequences
    per device and step, all ``microbatches`` together; ``global_batch`` sequences per step.
    ``layers_per_stage`` are those of each chunk, in the order of execution.
    """

    sequence: int | None = None
    pdbs: int | None = None
    microbatches: int = 1
    device_batch: int | None = None
    global_batch: int | None = None
    schedule: str = "1f1b"
    layers_per_stage: tuple[int, ...] | None = None


NO_BATCH = Batch()


def broken_rules(
    plan: ParallelPlan, model: ModelSpec, batch: Batch, *, is_jax: bool = True
) -> list[str]:
    """Complaints on heads, widths, layers, sequence and batch; Megatron-LM's where not JAX's."""
    return [
        *_tensor(plan, model),
        *_pipeline(plan, model, batch),
        *_context(plan, batch, is_jax=is_jax),
        *_batch(plan, batch, is_jax=is_jax),
    ]


def _tensor(plan: ParallelPlan, model: ModelSpec) -> list[str]:
    if plan.tensor == 1:
        return []
    split = {"heads": model.heads}
    if isinstance(model.attention, GqaSpec) and plan.tensor < model.attention.kv_heads:
        split["key and value heads"] = model.attention.kv_heads
    if model.linear is not None:
        split["key heads of linear attention"] = model.linear.key_heads
        split["value heads of linear attention"] = model.linear.value_heads
    if model.dense_layers:
        split["features of dense feed-forwards"] = model.dense_ffn
    if model.shared_width:
        split["features of shared experts"] = model.shared_width
    complaints = [
        f"{count} {what} cannot be split evenly over tensor {plan.tensor}; valid: "
        f"{listed(divisors(count))}"
        for what, count in split.items()
        if count % plan.tensor
    ]
    if isinstance(model.attention, GqaSpec) and plan.tensor > model.attention.kv_heads:
        kv_heads = model.attention.kv_heads
        if plan.tensor % kv_heads:
            fitting = [d for d in divisors(model.heads) if d % kv_heads == 0 or kv_heads % d == 0]
            complaints.append(
                f"{kv_heads} key and value heads can neither be split nor copied evenly over "
                f"tensor {plan.tensor}; valid: {listed(fitting)}"
            )
    if model.experts and model.moe_ffn % plan.expert_tensor:
        fitting = [d for d in divisors(plan.tensor) if model.moe_ffn % d == 0]
        complaints.append(
            f"{model.moe_ffn} features of an expert cannot be split evenly over expert_tensor "
            f"{plan.expert_tensor}; valid: {listed(fitting)}"
        )
    return complaints


def _pipeline(plan: ParallelPlan, model: ModelSpec, batch: Batch) -> list[str]:
    complaints = []
    chunks = plan.pipeline * plan.virtual
    given = batch.layers_per_stage
    if plan.virtual > 1 and plan.pipeline == 1:
        complaints.append(
            f"virtual {plan.virtual} needs pipeline of at least 2, found 1; set virtual to 1"
        )
    elif given is not None:
        if len(given) not in (plan.pipeline, chunks) or sum(given) != model.layers:
            complaints.append(
                f"layers per stage {listed(given)}: {len(given)} counts of {sum(given)} layers, "
                f"but there are {plan.pipeline} stages × {plan.virtual} chunks and {model.layers} "
                "layers"
            )
    elif chunks > model.layers:
        complaints.append(
            f"{model.layers} layers are fewer than pipeline {plan.pipeline} × virtual "
            f"{plan.virtual} = {chunks} chunks; valid pipeline × virtual: "
            f"{listed(divisors(model.layers))}"
        )
    elif chunks > 1 and batch.schedule in _EVEN:
        # MaxText keeps leading dense layers outside its pipeline.
        piped = model.moe_layers or model.layers
        if piped % chunks:
            complaints.append(
                f"{piped} layers cannot be split evenly over pipeline {plan.pipeline} × virtual "
                f"{plan.virtual}, which {batch.schedule} needs; valid pipeline × virtual: "
                f"{listed(divisors(piped))}, or give the layers of each stage with "
                "--layers-per-stage"
            )
    complaints += _schedule(plan, batch)
    is_grouped = batch.schedule == "interleaved" or (
        plan.virtual > 1 and batch.schedule in _GROUPED
    )
    if plan.pipeline > 1 and is_grouped and batch.microbatches % plan.pipeline:
        below = batch.microbatches // plan.pipeline * plan.pipeline
        complaints.append(
            f"{batch.microbatches} microbatches are no multiple of pipeline {plan.pipeline}, which "
            f"interleaved stages need; nearest: {_around(below, plan.pipeline)}; use at least "
            f"{plan.pipeline}"
        )
    return complaints


def _schedule(plan: ParallelPlan, batch: Batch) -> list[str]:
    """What the schedule has against the chunks; 1F1B and GPipe have forms for several."""
    if plan.pipeline == 1:
        return []
    name = batch.schedule
    if plan.virtual > 1:
        name = _FOR_SEVERAL.get(name, name)
    try:
        Schedule(name, plan.pipeline, batch.microbatches, plan.virtual)
    except SpecError as error:
        return [str(error).removesuffix(".")]
    return []


def _context(plan: ParallelPlan, batch: Batch, *, is_jax: bool) -> list[str]:
    """Megatron cuts a sequence into 2 · CP pieces, so that causal work is even."""
    if plan.context == 1 or batch.sequence is None:
        return []
    each = 1 if is_jax else 2
    if batch.sequence % (plan.context * each) == 0:
        return []
    fitting = [d for d in divisors(batch.sequence) if batch.sequence % (d * each) == 0]
    return [
        f"sequence {batch.sequence} cannot be cut into {plan.context * each} pieces for context "
        f"{plan.context}; valid context: {listed(fitting) or 'only 1'}"
    ]


def _batch(plan: ParallelPlan, batch: Batch, *, is_jax: bool) -> list[str]:
    complaints = []
    microbatches = batch.microbatches
    if batch.device_batch is not None and batch.device_batch % microbatches:
        complaints.append(
            f"per-device batch {batch.device_batch} cannot be cut into {microbatches} "
            f"microbatches; valid: {listed(divisors(batch.device_batch))}"
        )
    if batch.global_batch is None:
        return complaints
    ranks = plan.degree(AXES if is_jax else ("data", "fsdp"))
    each = ranks * (batch.pdbs or 1) * (microbatches if batch.pdbs else 1)
    expected = (
        f"{ranks} batch shards × pdbs {batch.pdbs} × {microbatches} microbatches"
        if batch.pdbs
        else f"{ranks} batch shards"
    )
    if batch.pdbs and batch.global_batch != each:
        complaints.append(
            f"global batch {batch.global_batch} is not {expected} = {each}; set it to {each}, or "
            f"microbatches to {_microbatches(batch.global_batch, ranks * batch.pdbs)}"
        )
    elif batch.global_batch % each:
        below = batch.global_batch // each * each
        complaints.append(
            f"global batch {batch.global_batch} cannot be split over {expected}; nearest: "
            f"{_around(below, each)}"
        )
    return complaints


def _microbatches(global_batch: int, each: int) -> str:
    if global_batch % each == 0:
        return str(global_batch // each)
    return f"none: {global_batch} is no multiple of {each}"


def _around(below: int, step: int) -> str:
    return f"{below} or {below + step}" if below else str(step)


def listed(values: Iterable[int]) -> str:
    """Numbers as a sentence has them."""
    return ", ".join(map(str, values))


def check_plan(
    plan: ParallelPlan, model: ModelSpec, devices: int | None, batch: Batch = NO_BATCH
) -> None:
    """Check a plan of a JAX program; ``devices`` None: as many as it needs.

    Raises:
        PlanError: all complaints at once, each with both numbers and the valid choices.
    """
    _raise([*_jax_devices(plan, model, devices), *broken_rules(plan, model, batch)])


def check_megatron_plan(
    plan: ParallelPlan, model: ModelSpec, devices: int | None, batch: Batch = NO_BATCH
) -> None:
    """Check a plan of Megatron-LM, whose data parallelism is ``data · fsdp``.

    Raises:
        PlanError: all complaints at once, each with both numbers and the valid choices.
    """
    _raise(
        [*_megatron_devices(plan, model, devices), *broken_rules(plan, model, batch, is_jax=False)]
    )


def plan_remarks(plan: ParallelPlan, model: ModelSpec, batch: Batch = NO_BATCH) -> tuple[str, ...]:
    """Sentences on what is legal in a plan and may surprise."""
    remarks = []
    if isinstance(model.attention, GqaSpec) and plan.tensor > model.attention.kv_heads:
        copies = plan.tensor // model.attention.kv_heads
        remarks.append(
            f"{model.attention.kv_heads} key and value heads on tensor {plan.tensor}: each is held "
            f"{copies} times"
        )
    if plan.tensor > 1 and plan.expert_tensor == 1 and model.experts:
        remarks.append(
            f"tensor {plan.tensor} does not split experts: their weights are divided by expert "
            f"{plan.expert} alone (expert_tensor {plan.tensor} would)"
        )
    chunks = plan.pipeline * plan.virtual
    if batch.layers_per_stage is None and 1 < chunks < model.layers and model.layers % chunks:
        split = even_split(model.layers, chunks)
        remarks.append(
            f"{model.layers} layers over {chunks} chunks: {min(split)} or {max(split)} each; "
            "--layers-per-stage chooses the layers of each"
        )
    if batch != NO_BATCH and batch.microbatches < plan.pipeline:
        remarks.append(few_microbatches(batch.microbatches, plan.pipeline))
    return tuple(remarks)


def _raise(complaints: list[str]) -> None:
    if complaints:
        raise PlanError("; ".join(complaints) + ".")


def _jax_devices(plan: ParallelPlan, model: ModelSpec, devices: int | None) -> list[str]:
    there = plan.devices if devices is None else devices
    complaints = _experts(plan, model, there, there)
    if plan.devices != there:
        axes = [axis for axis in ALL_AXES if axis in AXES or plan.degree((axis,)) > 1]
        complaints.append(_product(plan, axes, there) + _suggest(plan, there))
    return complaints


def _megatron_devices(plan: ParallelPlan, model: ModelSpec, devices: int | None) -> list[str]:
    needed = plan.degree(MEGATRON_AXES)
    there = needed if devices is None else devices
    inside = needed // plan.pipeline
    complaints = _experts(plan, model, inside, there)
    if needed != there:
        axes = [axis for axis in MEGATRON_AXES if axis == "data" or plan.degree((axis,)) > 1]
        others = needed // plan.data
        hint = (
            f"; set data to {there // others}"
            if there % others == 0
            else f"; the others must divide {there}: {listed(divisors(there))}"
        )
        complaints.append(_product(plan, axes, there) + hint)
    spread = plan.expert * plan.expert_tensor
    if inside % spread:
        fitting = [d for d in divisors(inside) if d % plan.expert_tensor == 0]
        complaints.append(
            f"expert {plan.expert} × expert_tensor {plan.expert_tensor} = {spread} does not divide "
            f"the {inside} devices of a pipeline stage (tensor × context × data); valid expert: "
            f"{listed(d // plan.expert_tensor for d in fitting if _divides(model, d, plan))}"
        )
    return complaints


def _divides(model: ModelSpec, spread: int, plan: ParallelPlan) -> bool:
    return model.experts % (spread // plan.expert_tensor) == 0


def _experts(plan: ParallelPlan, model: ModelSpec, spread_over: int, devices: int) -> list[str]:
    if not model.experts:
        if plan.expert == 1:
            return []
        return [
            f"a model without experts has none to spread over expert {plan.expert}; set it to 1"
        ]
    if model.experts % plan.expert == 0:
        return []
    fitting = [d for d in divisors(model.experts) if spread_over % d == 0]
    return [
        f"{model.experts} experts cannot be split evenly over expert {plan.expert}; "
        f"valid on {devices} devices: {listed(fitting)}"
    ]


def _product(plan: ParallelPlan, axes: Iterable[str], there: int) -> str:
    degrees = [plan.degree((axis,)) for axis in axes]
    return (
        f"plan needs {' × '.join(map(str, degrees))} = {math.prod(degrees)} devices "
        f"({' × '.join(axes)}) but there are {there}"
    )


def _suggest(plan: ParallelPlan, devices: int) -> str:
    others = plan.devices // plan.fsdp
    if devices % others == 0:
        return f"; set fsdp to {devices // others}"
    return f"; expert must divide {devices}: {listed(divisors(devices))}"
