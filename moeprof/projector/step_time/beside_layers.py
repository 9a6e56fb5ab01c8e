"""Question: what does a step take beside the work of its layers? Weights, sums, update, pipeline.

JAX (FSDP): per layer and microbatch two gathers (forward; backward, shared with recomputation) and
one reduce-scatter. Experts are gathered over (fsdp, context), all else over expert too, which is
MaxText's layout. The ``data`` axis sums gradients once per step: an all-reduce of what a device
holds. Megatron: weights stay; once per step gradients are reduce-scattered and weights gathered
over all replicas (its distributed optimizer), beside one microbatch of work. Over them lies the
time in which a pipeline fills and drains, and its transfers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.projector.setting import Count, Real
from moeprof.projector.shares import StageLoad
from moeprof.projector.state import gradient_dtype
from moeprof.projector.step_time.flops import LayerKind, matrices
from moeprof.projector.step_time.rates import (
    Ground,
    TimeRow,
    gather_s,
    item_bytes,
    memory_bytes_per_s,
    slower,
)
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.schedule import SINGLE, Schedule

MOMENTS = {"adamw": 2, "muon": 1}
"""Whole moments of a matrix, by optimizer: see `moeprof.projector.state`; others none."""
_PASSES = 3
HIDDEN_SHARE = {"dense": 0.4}
"""Of FSDP's traffic, by kind of strategy: see `moeprof.projector.step_time`; others 0."""
_SOURCE = "XLA's collectives of a scanned layer: ROCm/maxtext on 64 MI355X, maxtext-slurm traces"


class Weights(NamedTuple):
    """Elements of a layer, or a head, on one tensor-parallel rank before any other split."""

    experts: Real
    others: Real


def layer_weights(ground: Ground, kind: LayerKind) -> Weights:
    """Elements of one layer's matrices."""
    model, degrees = ground.setting.model, ground.degrees
    routed = model.experts * model.feedforward_matrices * model.hidden * model.moe_ffn
    is_folded = ground.setting.program.folds_experts
    split = degrees.expert_tensor if is_folded else degrees.tensor
    others = sum(matrices(model, kind)) / np.asarray(degrees.tensor)
    return Weights(routed / np.asarray(split) if kind == "moe" else 0.0, others)


def head_weights(ground: Ground) -> Weights:
    """Elements of the head."""
    model = ground.setting.model
    return Weights(0.0, model.vocab * model.hidden / np.asarray(ground.degrees.tensor))


def gather_row(ground: Ground, weights: Weights, compute_s: Real) -> TimeRow:
    """FSDP traffic of one layer and microbatch; nothing where weights stay whole."""
    setting, links = ground.setting, ground.links
    item = item_bytes(setting)
    seconds: Real = 0.0
    if setting.program.gathers_weights:
        groups = ground.groups
        local = weights.experts / np.asarray(ground.degrees.expert) * item
        once = gather_s(local, groups.expert_weights, links)
        once = once + gather_s(weights.others * item, groups.other_weights, links)
        seconds = once * _PASSES
    share = HIDDEN_SHARE.get(setting.strategy.kind, 0.0)
    hidden = np.minimum(seconds * np.float64(share), compute_s)
    return TimeRow(
        "FSDP gathers and gradient sums",
        "collectives",
        seconds - hidden,
        hidden,
        "3 · layer weights · bytes · (fsdp − 1) / fsdp / link",
        _SOURCE,
        ground.rates.confidence,
    )


def replica_row(ground: Ground, load: StageLoad, microbatch_s: Real) -> TimeRow:
    """Gradient sums, and in Megatron weight gathers, of one step, by kind of stage."""
    setting, links, groups = ground.setting, ground.links, ground.groups
    held = _held(ground, load)
    gradient = DTYPE_BYTES[gradient_dtype(setting)]
    if not setting.program.gathers_weights:
        moved = gradient + item_bytes(setting)
        seconds = gather_s(held.experts * moved, groups.expert_weights, links)
        seconds = seconds + gather_s(held.others * moved, groups.other_weights, links)
        hidden = np.minimum(seconds, microbatch_s)
    else:
        held_all = held.experts + held.others
        seconds = 2 * gather_s(held_all * gradient, groups.replicas, links)
        hidden = np.zeros_like(seconds)
    return TimeRow(
        "data-parallel sums",
        "collectives",
        seconds - hidden,
        hidden,
        "gradients of a device · bytes, reduced and gathered over its replicas, once per step",
        "Thakur et al. 2005, ring all-reduce",
        ground.rates.confidence,
    )


def update_row(ground: Ground, load: StageLoad) -> TimeRow:
    """The optimizer passes weights, moments and gradients through memory once.

    Muon's products are not counted, nor Adafactor's edges of matrices.
    """
    precision = ground.setting.precision
    moments = (precision.first_moment, precision.second_moment)
    names = (*moments[: MOMENTS.get(ground.setting.optimizer, 0)], precision.master)
    state = sum(DTYPE_BYTES[name] for name in names if name is not None)
    gradient = DTYPE_BYTES[gradient_dtype(ground.setting)]
    per_element = 2 * (state + DTYPE_BYTES[precision.weights]) + gradient
    held = _held(ground, load)
    if not ground.setting.program.gathers_weights:
        groups = ground.groups
        elements = held.experts / np.asarray(groups.expert_weights.size)
        elements = elements + held.others / np.asarray(groups.other_weights.size)
    else:
        elements = held.experts + held.others
    return TimeRow(
        "optimizer",
        "memory passes",
        elements * per_element / memory_bytes_per_s(ground),
        0.0,
        "elements held · (2 · (weights + moments + master) + gradients) / memory",
        "each is read and written once",
        "medium",
    )


def _held(ground: Ground, load: StageLoad) -> Weights:
    """Elements that a device of each kind of stage holds; of embedding and head, the head."""
    dense, moe = layer_weights(ground, "dense"), layer_weights(ground, "moe")
    ends = head_weights(ground).others
    experts = load.moe * moe.experts / np.asarray(ground.degrees.expert)
    others = load.dense * dense.others + load.moe * moe.others + load.heads * ends
    if not ground.setting.program.gathers_weights:
        return Weights(experts, others)
    split = np.asarray(ground.degrees.fsdp * ground.degrees.context)
    return Weights(experts / split, others / (split * ground.degrees.expert))


# The pipeline. Until the last stage has work, and after the first has none, stages wait. Of the
# time that one microbatch takes on all *other* stages together, a schedule makes them wait for
#
#     idle_rounds / ((p − 1) · rounds per microbatch)
#
# which is 1 for 1F1B, 1 / v with v chunks per stage, and less for zero-bubble schedules; with equal
# stages that gives the bubble of `moeprof.specs.schedule`, which has the sources.


def fill_row(ground: Ground, other_stages_s: Real) -> TimeRow:
    """Filling and draining; ``other_stages_s`` is one microbatch on all stages but the slowest."""
    degrees = ground.degrees
    share = waiting_share(ground.setting.schedule, degrees.pipeline, degrees.virtual)
    return TimeRow(
        "pipeline fills and drains",
        "pipeline",
        other_stages_s * share,
        0.0,
        "one microbatch on all other stages · idle rounds / ((stages − 1) · rounds of one)",
        "moeprof.specs.schedule",
        "medium",
    )


def waiting_share(schedule: str, stages: Count, virtual: Count) -> npt.NDArray[np.float64]:
    """Share of the other stages' time for one microbatch for which a stage waits."""
    pairs = np.stack(np.broadcast_arrays(np.asarray(stages), np.asarray(virtual)))
    shape = pairs.shape[1:]
    kinds, places = np.unique(pairs.reshape(2, -1), axis=1, return_inverse=True)
    shares = np.asarray([_share(schedule, int(p), int(v)) for p, v in kinds.T])
    return shares[places].reshape(shape)


def transfer_row(ground: Ground) -> TimeRow:
    """Activations to the next stage and gradients back, for all microbatches of a step."""
    degrees = ground.degrees
    size = ground.tokens * ground.setting.model.hidden * item_bytes(ground.setting)
    size = np.where(np.asarray(degrees.pipeline) > 1, size / degrees.tensor, 0.0)
    is_inside = np.asarray(ground.groups.stages.inside) > 1
    once = slower(np.where(is_inside, size, 0.0), np.where(is_inside, 0.0, size), ground.links)
    seconds = 2 * once * degrees.microbatches * degrees.virtual
    has_chunks = np.asarray(degrees.virtual) > 1
    return TimeRow(
        "pipeline transfers",
        "pipeline",
        np.where(has_chunks, 0.0, seconds),
        np.where(has_chunks, seconds, 0.0),
        "2 · microbatches · virtual · tokens · hidden · bytes / link",
        "hidden behind other chunks where a stage has several",
        "medium",
    )


def _share(name: str, stages: int, virtual: int) -> float:
    if stages == 1:
        return 0.0
    if name in SINGLE and virtual > 1:
        name = "interleaved"
    schedule = Schedule(name, stages, 1, virtual)
    return schedule.idle_rounds / ((stages - 1) * schedule.rounds)
