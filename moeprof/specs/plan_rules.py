"""Question: which rules does a plan break, wherever it runs?

Each rule gives complaints with both numbers and the choices there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moeprof.errors import SpecError
from moeprof.specs.model import GqaSpec, ModelSpec, divisors
from moeprof.specs.plan import AXES, ParallelPlan
from moeprof.specs.schedule import Schedule

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
