"""Question: does a plan fit the model, the devices and the batch, and which choices would?

Two worlds. In JAX every axis is a factor of the devices. In Megatron-LM the devices are
TP · CP · PP · DP, and experts lie inside TP · CP · DP, which EP · ETP must divide (Liu et al. 2025,
"MoE Parallel Folding", arXiv 2504.14960, section 3.2).

A complaint names both numbers and the choices there are. A remark is about what is legal and does
not go without saying.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from moeprof.errors import PlanError
from moeprof.specs.model import GqaSpec, ModelSpec, divisors
from moeprof.specs.plan import ALL_AXES, AXES, MEGATRON_AXES, ParallelPlan
from moeprof.specs.plan_rules import NO_BATCH, Batch, broken_rules, listed
from moeprof.specs.schedule import few_microbatches
from moeprof.specs.stages import even_split


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
