"""Question: which plans are there for a number of devices, and which rules do some of them break?

Every way to write the devices as a product of degrees of the axes. In Megatron-LM experts lie
inside a stage's devices, so that each of those comes with every degree of ``expert`` that divides a
stage; ``fsdp`` is no axis of its own there. Chunks per stage (``virtual``) are those that split the
layers evenly; schedules that split backward work have one number of them. Tensor parallelism stays
inside the fast domain: its sums do not hide.

Rules are those of `moeprof.specs.plan_checks`, over arrays. A plan that breaks several counts for
the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError
from moeprof.projector.setting import Degrees, Setting
from moeprof.specs.model import GqaSpec, divisors
from moeprof.specs.remat import Remat
from moeprof.specs.schedule import SPLIT, V_CHUNKS, V_SHAPED
from moeprof.specs.strategy import Strategy

LIMITED = ("data", "fsdp", "expert", "tensor", "context", "pipeline", "expert_tensor", "virtual")
"""Degrees that `Space.allowed` may limit."""
_MOST_DOUBLINGS = 5


@dataclass(frozen=True)
class Space:
    """What is searched.

    ``base`` gives all that plans share: model, hardware, sequence, framework, formats. ``allowed``
    limits degrees by name. ``global_batch`` sequences make a step, cut into microbatches of 1, 2,
    4, 8 or 16 sequences, or without a pipeline of all that a device has; without it each plan takes
    ``pdbs``, or the largest that fits, and two microbatches per stage (one without a pipeline).
    ``leaves_room``: a plan that needs more beside the pool than the base's fraction leaves gets a
    smaller pool. ``arena``: factors on XLA's arena by strategy and rematerialisation, from runs.
    """

    base: Setting
    devices: int
    strategies: tuple[Strategy, ...]
    remats: tuple[Remat, ...]
    allowed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    global_batch: int | None = None
    pdbs: int | None = None
    leaves_room: bool = False
    arena: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def folds_experts(self) -> bool:
        """Whether experts lie inside the other degrees."""
        return self.base.program.folds_experts


MOST_PLANS = 500_000
"""So many are projected within seconds, in less than a gigabyte."""


def plans(space: Space) -> Degrees:
    """Every plan, legal or not, as arrays; without a batch pdbs is 1.

    Raises:
        SpecError: there are more than `MOST_PLANS`.
    """
    found = list(itertools.islice(_plans(space), MOST_PLANS + 1))
    if len(found) > MOST_PLANS:
        raise SpecError(
            f"search: {space.devices:,} devices can be laid out in more than {MOST_PLANS:,} ways: "
            "expected degrees that leave fewer, such as --pp 1,2,4,8 --tp 1,2,4,8 --cp 1."
        )
    rows = np.asarray(found, dtype=np.int64).reshape(-1, len(Degrees._fields))
    return Degrees(*rows.T)


def _plans(space: Space) -> Iterator[tuple[int, ...]]:
    sequence = space.base.sequence or 0
    for mesh in _meshes(space):
        data, fsdp, expert, tensor, _, pipeline = mesh
        shards = data * fsdp * (1 if space.folds_experts else expert)
        batches = list(_batches(space, shards, pipeline))
        for expert_tensor in _kept(space, "expert_tensor", _expert_tensors(space, tensor)):
            for virtual in _kept(space, "virtual", _chunks(space, pipeline)):
                for pdbs, microbatches in batches:
                    yield (*mesh, expert_tensor, virtual, pdbs, microbatches, sequence)


def _meshes(space: Space) -> Iterator[tuple[int, ...]]:
    """(data, fsdp, expert, tensor, context, pipeline)."""
    for pipeline in _kept(space, "pipeline", divisors(space.devices)):
        stage = space.devices // pipeline
        for tensor in _kept(space, "tensor", divisors(stage)):
            if tensor > space.base.hardware.domain:
                continue
            for context in _kept(space, "context", divisors(stage // tensor)):
                rest = stage // tensor // context
                for data, fsdp, expert in _replicas(space, rest, stage):
                    yield data, fsdp, expert, tensor, context, pipeline


def _replicas(space: Space, rest: int, stage: int) -> Iterator[tuple[int, int, int]]:
    if space.folds_experts:
        if _is_kept(space, "data", rest):
            experts = divisors(stage) if space.base.model.experts else (1,)
            for expert in _kept(space, "expert", experts):
                yield rest, 1, expert
        return
    experts = divisors(rest) if space.base.model.experts else (1,)
    for expert in _kept(space, "expert", experts):
        for fsdp in _kept(space, "fsdp", divisors(rest // expert)):
            data = rest // expert // fsdp
            if _is_kept(space, "data", data):
                yield data, fsdp, expert


def _expert_tensors(space: Space, tensor: int) -> tuple[int, ...]:
    """In JAX tensor parallelism splits experts too, whatever the plan calls it."""
    return divisors(tensor) if space.folds_experts and space.base.model.experts else (1,)


def _chunks(space: Space, pipeline: int) -> tuple[int, ...]:
    """Chunks per stage."""
    layers, schedule = space.base.model.layers, space.base.schedule
    if pipeline == 1:
        return (1,)
    if schedule in SPLIT:
        return (V_CHUNKS if schedule in V_SHAPED else 1,)
    return tuple(
        v for v in range(1, layers // pipeline + 1) if v == 1 or layers % (pipeline * v) == 0
    )


def _batches(space: Space, shards: int, pipeline: int) -> Iterator[tuple[int, int]]:
    """(pdbs, microbatches)."""
    if space.global_batch is None:
        yield space.pdbs or 1, 1 if pipeline == 1 else 2 * pipeline
        return
    each = space.global_batch // shards
    if each * shards != space.global_batch or not each:
        yield 1, max(each, 1)  # not legal, and counted as such
        return
    sizes = {2**n for n in range(_MOST_DOUBLINGS)} | ({each} if pipeline == 1 else set())
    if space.pdbs is not None:
        yield space.pdbs, max(each // space.pdbs, 1)  # not legal where that leaves a rest
        return
    for pdbs in sorted(sizes):
        if each % pdbs == 0:
            yield pdbs, each // pdbs


def _kept(space: Space, axis: str, degrees: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(degree for degree in degrees if _is_kept(space, axis, degree))


def _is_kept(space: Space, axis: str, degree: int) -> bool:
    allowed = space.allowed.get(axis)
    return allowed is None or degree in allowed


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
    if not space.folds_experts:
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
    """Megatron-LM, for one, cuts a sequence into 2 · CP pieces."""
    context = np.asarray(degrees.context)
    pieces = context * space.base.program.sequence_pieces
    return np.asarray((context > 1) & (np.asarray(degrees.sequence) % pieces != 0))


def _batch(space: Space, degrees: Degrees) -> Mask:
    shards = np.asarray(degrees.data * degrees.fsdp)
    if not space.folds_experts:
        shards = shards * degrees.expert
    if space.global_batch is None:
        return np.zeros(shards.shape, dtype=np.bool_)
    assert degrees.pdbs is not None
    return np.asarray(shards * degrees.pdbs * degrees.microbatches != space.global_batch)
