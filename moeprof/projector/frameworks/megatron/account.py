"""Question: what does a run of Megatron-LM, or of Primus on top of it, hold in memory?

A stage holds its weights and optimizer, what it keeps of its chunks of layers, and what lies beside
PyTorch's memory. With V-shaped schedules a token comes back the way it went: the first stage has
the head. PyTorch allocates what arrives, so an even routing is assumed unless ``overload`` says
otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moeprof.errors import SpecError
from moeprof.projector.breakdown import (
    MemoryBreakdown,
    Peak,
    Row,
    StageBreakdown,
    total,
)
from moeprof.projector.frameworks.megatron.layer import known
from moeprof.projector.frameworks.megatron.peaks import peaks_of, unknown_peak
from moeprof.projector.frameworks.megatron.ranks import (
    Sizes,
    devices_of,
    sizes_of,
    state_rows,
    times,
)
from moeprof.projector.outside import deepep_rows, reserve_rows
from moeprof.projector.setting import (
    Amount,
    Count,
    Degrees,
    Setting,
    ceil_div,
    linear_layers_note,
    smaller,
    whole,
)
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import in_flight_by_chunk
from moeprof.specs.stages import (
    StageLayers,
    split_stages,
    stage_parameters,
    stages_of_layout,
    whole_stages,
)


def stages_of(setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
    """The layers of each stage, all its chunks together."""
    stages = whole_stages(_chunks(setting, pipeline, virtual))
    return stages[:1] if setting.megatron.account == "primus" else stages


def stage_breakdown(setting: Setting, degrees: Degrees, stage: StageLayers) -> StageBreakdown:
    """One stage: its state, its moments, and what lies beside PyTorch's memory.

    All degrees but ``pipeline``, ``virtual`` and ``microbatches`` may be arrays.
    """
    if setting.megatron.account == "primus":
        return primus_stage(setting, degrees)
    sizes = sizes_of(setting, degrees)
    parameters = stage_parameters(setting.model, stage)
    args = state_rows(setting, parameters, sizes)
    peaks: tuple[Peak, ...] = (unknown_peak(),)
    k = known(setting, sizes)
    if k is not None:
        p, v, m = (int(n) for n in (degrees.pipeline, degrees.virtual, degrees.microbatches))
        chunks = [c for c in _chunks(setting, p, v) if c.stage == stage.stage]
        flight = flight_of_chunks(setting.schedule, p, v, m, stage.stage)
        peaks = peaks_of(setting, k, sizes, chunks, flight, parameters)
    outside = outside_rows(setting, degrees, _allocated(args, peaks))
    return StageBreakdown(stage.stage, args, peaks, outside)


def _chunks(setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
    layout, split = setting.megatron.layout, setting.layers_per_stage
    return _split(setting.model, pipeline, virtual, layout, split, setting.schedule)


@functools.lru_cache(maxsize=64)
def _split(
    model: ModelSpec,
    pipeline: int,
    virtual: int,
    layout: str | None,
    split: tuple[int, ...] | None,
    schedule: str,
) -> tuple[StageLayers, ...]:
    """The chunks of all stages; kept, as each stage of a pipeline asks for them."""
    if layout is not None:
        return stages_of_layout(model, layout, pipeline, virtual, schedule)
    return split_stages(model, pipeline, virtual, split, schedule)


def _allocated(args: Sequence[Row], peaks: Sequence[Peak]) -> Amount | None:
    """Bytes of tensors at the fullest peak."""
    state, moments = total(args), [peak.size_bytes for peak in peaks]
    known_moments = [m for m in moments if m is not None]
    if state is None or len(known_moments) < len(moments):
        return None
    fullest = functools.reduce(np.maximum, known_moments)
    return state + fullest if isinstance(fullest, np.ndarray) else int(state + fullest)


# Of how many microbatches each chunk of a stage holds activations. The first chunk, which begins
# earliest and ends last, holds more than the last one, which has the head.

_SETTLED = 4
"""Times the stages: more microbatches than that repeat what a stage did before."""


def flight_of_chunks(schedule: str, p: int, v: int, m: int, stage: int) -> tuple[float, ...]:
    """Microbatches in flight of each chunk of a stage, first chunk first; never more than m.

    Args:
        schedule: of `moeprof.specs.schedule`; "1f1b" with several chunks is the interleaved one.
        p: stages of the pipeline.
        v: chunks of layers per stage.
        m: microbatches per iteration.
        stage: from 0. A single stage is no pipeline: its microbatches follow one another.
    """
    if p == 1:
        return (1.0,) * v
    name = "interleaved" if schedule == "1f1b" and v > 1 else schedule
    if name not in ("gpipe", "circular"):  # those hold all microbatches
        m = min(m, _SETTLED * p)
    return _flight(name, p, v, m, stage)


@functools.lru_cache(maxsize=16384)
def _flight(name: str, p: int, v: int, m: int, stage: int) -> tuple[float, ...]:
    return in_flight_by_chunk(Schedule(name, p, m, v), stage)


# What a run takes beside the tensors that PyTorch has allocated: none of it is in
# ``max_memory_allocated``, all of it is in what rocm-smi or nvidia-smi show.

CACHE_SHARE = 0.026
"""PyTorch reserves more than is allocated: 162.29 of 158.22 GiB and 173.86 of 169.54 GiB."""
CACHE_ROW = "allocator cache"
_GROUPS = 5


def outside_rows(setting: Setting, degrees: Degrees, allocated: Amount | None) -> tuple[Row, ...]:
    """Context, communicators, DeepEP's buffers, and what PyTorch holds but does not use.

    ``allocated``: bytes of tensors at the peak; None where not known.
    """
    cache = Row(
        CACHE_ROW,
        "outside",
        "runtime reserve",
        None if allocated is None else whole(allocated * CACHE_SHARE),
        f"{CACHE_SHARE:g} · allocated",
        "allocated and reserved of two runs: NVIDIA-NeMo/Megatron-Bridge, nemotron-3.5-lightning",
        "low",
    )
    reserve = reserve_rows(setting.hardware, _ranks(degrees), _GROUPS, "ranks of its groups")
    return (*reserve, *deepep_rows(setting, degrees), cache)


def without_cache(step: StageBreakdown) -> tuple[Row, ...]:
    """What lies beside PyTorch's memory but for what the step leaves in the allocator's cache."""
    return tuple(row for row in step.outside if row.name != CACHE_ROW)


# Host memory.

MOMENTS = ("first moment", "second moment")


def offloaded_moments(setting: Setting, degrees: Degrees, stage: StageLayers) -> tuple[Row, ...]:
    """Moments in the memory of one host, of its ranks together."""
    share = 1.0 if "optimizer" in setting.offload else setting.megatron.optimizer_on_host
    if not share:
        return ()
    ranks = smaller(devices_of(degrees), setting.hardware.host_devices)
    rows = _state(setting, degrees, stage)
    return tuple(
        replace(
            row,
            pool="host",
            size_bytes=whole(row.size_bytes * ranks * share),
            formula=f"{row.formula} · {share:g} · ranks of a host",
        )
        for row in rows
        if row.name.startswith(MOMENTS) and row.size_bytes is not None
    )


def checkpoint_bytes(setting: Setting, degrees: Degrees, stage: StageLayers) -> tuple[Amount, str]:
    """What a host's ranks write: weights and optimizer state, each element by one rank.

    Where a host has ranks of several stages, all are taken to be like this one.
    """
    state = _state(setting, _ALONE, stage)
    size = total([row for row in state if row.kind in ("params", "optimizer")])
    assert size is not None
    ranks = devices_of(degrees) // degrees.pipeline
    here = smaller(devices_of(degrees), setting.hardware.host_devices)
    formula = "bytes of weights and optimizer state · ranks of a host / ranks of a stage"
    return whole(size * here / ranks), formula


_ALONE = Degrees(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def _state(setting: Setting, degrees: Degrees, stage: StageLayers) -> tuple[Row, ...]:
    """Rows of the state as if all of it lay on the device."""
    options = replace(setting.megatron, optimizer_on_host=0.0)
    here = replace(setting, offload=frozenset(), megatron=options)
    return state_rows(here, stage_parameters(setting.model, stage), sizes_of(here, degrees))


def _ranks(degrees: Degrees) -> Count:
    """Ranks of all groups that one rank is in: DP · CP, TP, PP, EP and EDP."""
    data = degrees.data * degrees.fsdp * degrees.context
    groups = degrees.expert_tensor * degrees.expert * degrees.pipeline
    expert_data = ceil_div(devices_of(degrees), groups)
    return data + degrees.tensor + degrees.pipeline + degrees.expert + expert_data


# What a projection assumed, and what it cannot know.


def notes_on(breakdown: MemoryBreakdown) -> tuple[str, ...]:
    """Sentences on a breakdown."""
    setting = breakdown.setting
    missing = [name for name in ("sequence", "pdbs") if getattr(setting, name) is None]
    found = [
        f"cannot estimate activations: {' and '.join(missing)} not given." if missing else "",
        _routing(breakdown),
        _account(breakdown),
        _offloaded(breakdown),
        linear_layers_note(setting.model),
    ]
    return tuple(note for note in found if note)


def _routing(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    if not setting.model.experts or setting.overload is not None:
        return ""
    return (
        "an even routing is assumed: Megatron allocates what arrives, so a rank that receives "
        "more rows needs more; an imbalance factor says how much more."
    )


def _account(breakdown: MemoryBreakdown) -> str:
    if breakdown.setting.megatron.account != "primus":
        return ""
    return (
        "account primus is the one that Primus's published figures follow; it leaves out query and "
        "output weights, float32 gradients and what a backward pass needs at work."
    )


def _offloaded(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    share = 1.0 if "optimizer" in setting.offload else setting.megatron.optimizer_on_host
    return f"{share:.0%} of the optimizer's moments are in the host's memory." if share else ""


# What Primus's own projection counts, whose figures AMD published: the account that its bars for
# MoE-1T and MoE-2T on 768 GPUs follow (AMD-AGI/Primus,
# examples/moe_package/images/moe-{1t,2t}-memory-projection.png), each to the printed digit and in
# decimal GB. It is here to read those figures, not to project with: attention weights are those of
# keys and values alone, router, norms and head are left out, gradients are in bf16, nothing is said
# of stages but the first. Per layer and microbatch it keeps, in bf16,
#
#     T · (5 · d + 2 · kv_heads · head_dim) + T · heads · 4 B + T · top-k · (d + 3 · f)
#
# of as many layers as the model has, times 1 + (p − 1) / (p · v), and the logits in 6 bytes once.
# Optimizer state: 2 B of a master copy (the lower half; the bf16 weight is the upper) and 8 B of
# moments, over EDP for all weights. Full recomputation leaves T · d.

PRIMUS_SOURCE = "AMD-AGI/Primus, examples/moe_package: moe-1t and moe-2t memory projection figures"
_PRIMUS_STATE = (
    ("weights", "params", 2),
    ("gradients", "grads", 2),
    ("lower halves of master weights", "optimizer", 2),
    ("moments", "optimizer", 8),
)


def primus_stage(setting: Setting, degrees: Degrees) -> StageBreakdown:
    """What Primus projects for one device.

    Raises:
        SpecError: attention is not grouped-query: no figure of such a model is published.
    """
    model = setting.model
    if not isinstance(model.attention, GqaSpec):
        raise SpecError("account primus: known for grouped-query attention alone, found MLA.")
    sizes = sizes_of(setting, degrees)
    held = _primus_parameters(model, model.attention, sizes, degrees.pipeline)
    args = []
    for name, kind, width in _PRIMUS_STATE:
        shards = sizes.expert_data if kind == "optimizer" else 1
        over = " / EDP" if kind == "optimizer" else ""
        args.append(
            _primus_row(name, "args", kind, ceil_div(held * width, shards), f"P{over} · {width} B")
        )
    return StageBreakdown(
        0, tuple(args), (Peak("projected", _primus_activations(setting, degrees)),), ()
    )


def _primus_parameters(model: ModelSpec, gqa: GqaSpec, sizes: Sizes, pipeline: Count) -> Count:
    """Weights of L / PP layers and the embedding."""
    attention = 2 * model.hidden * gqa.kv_heads * gqa.head_dim
    experts = ceil_div(model.experts * model.feedforward_matrices * model.moe_ffn, sizes.expert)
    shared = model.feedforward_matrices * model.shared_width
    layer = attention + (experts + shared) * model.hidden
    return ceil_div(model.layers, pipeline) * layer + model.vocab * model.hidden


def _primus_activations(setting: Setting, degrees: Degrees) -> tuple[Row, ...]:
    model, sizes = setting.model, sizes_of(setting, degrees)
    assert isinstance(model.attention, GqaSpec)
    if sizes.tokens is None:
        missing = "cannot estimate activations: sequence or batch per device is not given"
        return (Row("activations", "temp", "activations", None, missing, PRIMUS_SOURCE, "unknown"),)
    p, v = int(degrees.pipeline), int(degrees.virtual)
    flight = model.layers * (1 + (p - 1) / (p * v)) * min(1, int(degrees.microbatches) / p)
    rows = []
    if setting.plan.remat.text == "full":
        rows.append(("layer inputs", sizes.tokens * model.hidden * 2, "T · d · 2 B"))
    else:
        kv = 2 * model.attention.kv_heads * model.attention.head_dim
        block = sizes.tokens * ((5 * model.hidden + kv) * 2 + model.heads * 4)
        routed = sizes.tokens * model.top_k * (model.hidden + 3 * model.moe_ffn) * 2
        rows.append(("attention and residuals", block, "T · ((5 · d + 2 · kv) · 2 + heads · 4) B"))
        rows.append(("experts", routed, "T · top-k · (d + 3 · f) · 2 B"))
    logits = sizes.tokens * model.vocab * 6
    return (
        *(
            _primus_row(name, "temp", "activations", times(size, flight), f"{formula} · {flight:g}")
            for name, size, formula in rows
        ),
        _primus_row("logits", "temp", "activations", logits, "T · V · 6 B"),
    )


def _primus_row(name: str, pool: str, kind: str, size: Amount, formula: str) -> Row:
    return Row(name, pool, kind, size, formula, PRIMUS_SOURCE, "low")  # type: ignore[arg-type]
