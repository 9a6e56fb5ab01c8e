"""Question: which of many plans may run at all, and which rule does each of the others break?

The rules of `moeprof.specs.plan_checks`, over arrays. A plan that breaks several counts for the
first.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from moeprof.projector.search.space import Space
from moeprof.projector.setting import Degrees
from moeprof.specs.model import GqaSpec

Mask: TypeAlias = npt.NDArray[np.bool_]
_GROUPED = ("1f1b", "interleaved")
_EVEN = ("gpipe", "circular")


def broken_rule(space: Space, degrees: Degrees) -> npt.NDArray[np.int64]:
    """Index into `RULES` of the first rule that each plan breaks; -1 where it is legal."""
    broken = np.full(np.asarray(degrees.data).shape, -1, dtype=np.int64)
    for number, rule in enumerate(
        (_experts, _folding, _tensor, _layers, _grouped, _context, _batch)
    ):
        broken[(broken < 0) & rule(space, degrees)] = number
    return np.asarray(broken)


RULES = (
    "have experts that EP does not divide",
    "have a stage that EP does not divide",
    "have heads or widths that TP does not divide",
    "have layers that the stages do not divide",
    "have microbatches that the stages do not divide",
    "have a sequence that CP does not divide",
    "have a batch that the devices do not divide",
)


def _experts(space: Space, degrees: Degrees) -> Mask:
    experts, expert = space.base.model.experts, np.asarray(degrees.expert)
    return np.asarray(experts % expert != 0 if experts else expert != 1)


def _folding(space: Space, degrees: Degrees) -> Mask:
    expert = np.asarray(degrees.expert)
    if not space.is_megatron:
        return np.zeros(expert.shape, dtype=np.bool_)
    inside = degrees.data * degrees.fsdp * degrees.tensor * degrees.context
    return np.asarray(inside % (expert * degrees.expert_tensor) != 0)


def _tensor(space: Space, degrees: Degrees) -> Mask:
    model, tensor = space.base.model, np.asarray(degrees.tensor)
    counts = [model.heads]
    if model.linear is not None:
        counts += [model.linear.key_heads, model.linear.value_heads]
    if model.dense_layers:
        counts.append(model.dense_ffn)
    if model.shared_width:
        counts.append(model.shared_width)
    broken = np.zeros(tensor.shape, dtype=np.bool_)
    for count in counts:
        broken |= count % tensor != 0
    if isinstance(model.attention, GqaSpec):
        kv_heads = model.attention.kv_heads
        broken |= np.where(tensor < kv_heads, kv_heads % tensor != 0, tensor % kv_heads != 0)
    if model.experts:
        broken |= model.moe_ffn % np.asarray(degrees.expert_tensor) != 0
    return np.asarray(broken & (tensor > 1))


def _layers(space: Space, degrees: Degrees) -> Mask:
    model = space.base.model
    chunks = np.asarray(degrees.pipeline * degrees.virtual)
    broken = (chunks > model.layers) | (
        (np.asarray(degrees.virtual) > 1) & (np.asarray(degrees.pipeline) == 1)
    )
    if space.base.schedule in _EVEN:
        broken |= (chunks > 1) & ((model.moe_layers or model.layers) % chunks != 0)
    return np.asarray(broken)


def _grouped(space: Space, degrees: Degrees) -> Mask:
    """Interleaved stages take microbatches in groups."""
    pipeline, virtual = np.asarray(degrees.pipeline), np.asarray(degrees.virtual)
    name = space.base.schedule
    is_grouped = np.full(pipeline.shape, name == "interleaved") | (
        (virtual > 1) & (name in _GROUPED)
    )
    left = np.asarray(degrees.microbatches) % pipeline
    return np.asarray(is_grouped & (pipeline > 1) & (left != 0))


def _context(space: Space, degrees: Degrees) -> Mask:
    """Megatron-LM cuts a sequence into 2 · CP pieces."""
    context = np.asarray(degrees.context)
    pieces = context * (2 if space.is_megatron else 1)
    return np.asarray((context > 1) & (np.asarray(degrees.sequence) % pieces != 0))


def _batch(space: Space, degrees: Degrees) -> Mask:
    shards = np.asarray(degrees.data * degrees.fsdp)
    if not space.is_megatron:
        shards = shards * degrees.expert
    if space.global_batch is None:
        return np.zeros(shards.shape, dtype=np.bool_)
    assert degrees.pdbs is not None
    return np.asarray(shards * degrees.pdbs * degrees.microbatches != space.global_batch)
