"""Question: how much memory does a training run need, in closed form, and what was assumed?

`project` answers for one setting, with every row and with notes on what it cannot know;
`project_many` for thousands of plans at once, sizes alone. Both evaluate the same functions; the
second passes arrays where the first passes numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError
from moeprof.projector.accounts import jax_step, megatron
from moeprof.projector.breakdown import BORDERLINE, MemoryBreakdown, StageBreakdown, total
from moeprof.projector.setting import (
    MAXTEXT_BUILDS,
    Amount,
    Degrees,
    Setting,
    degrees_of,
    linear_layers_note,
)
from moeprof.projector.shares import buffer_factor, stages_of
from moeprof.projector.state import offloaded_rows
from moeprof.specs.stages import StageLayers, split_stages, stage_parameters, whole_stages
from moeprof.units import format_bytes

# Notes: what a projection of a JAX step assumed, and what it cannot know.

SLOP = 0.95
"""Share of what is left of the pool that XLA's scheduler aims at
(xla_gpu_memory_limit_slop_factor 95)."""


def notes_on(breakdown: MemoryBreakdown) -> tuple[str, ...]:
    """Sentences on a breakdown of a JAX step."""
    found = (note(breakdown) for note in _NOTES)
    return tuple(sentence for sentence in found if sentence)


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
    if setting.world != "maxtext":
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

# The projection itself.

Sizes = npt.NDArray[np.float64]
_PER_GROUP = ("pipeline", "virtual", "microbatches")
"""Numbers in an evaluation: what a stage holds depends on them."""


class World(NamedTuple):
    """How a program is projected: what its stages hold, what fills one, what was assumed."""

    stages: Callable[[Setting, int, int], tuple[StageLayers, ...]]
    breakdown: Callable[[Setting, Degrees, StageLayers], StageBreakdown]
    notes: Callable[[MemoryBreakdown], tuple[str, ...]]


class PlanSizes(NamedTuple):
    """Bytes of each plan's worst stage, float64; nan where unknown."""

    args: Sizes
    temp: Sizes
    outside: Sizes


JAX = World(stages_of, jax_step.stage_breakdown, notes_on)
MEGATRON = World(megatron.stages_of, megatron.stage_breakdown, megatron.notes_on)


def project(setting: Setting) -> MemoryBreakdown:
    """The memory of one device: every stage, every row, and what was assumed.

    Raises:
        SpecError: the layers cannot be split over the stages.
    """
    degrees, world = degrees_of(setting), world_of(setting)
    held = world.stages(setting, setting.plan.pipeline, setting.plan.virtual)
    stages = tuple(world.breakdown(setting, degrees, stage) for stage in held)
    breakdown = MemoryBreakdown(setting, stages)
    notes = world.notes(breakdown)
    if setting.world == "maxtext":
        notes = (*notes, *_other_build(degrees, held, breakdown))
    return MemoryBreakdown(setting, stages, notes)


def _other_build(
    degrees: Degrees, held: tuple[StageLayers, ...], found: MemoryBreakdown
) -> tuple[str, ...]:
    """What the same run needs with another build of MaxText, where that is much more or less."""
    setting = found.setting
    build = next(name for name in MAXTEXT_BUILDS if name != setting.maxtext_build)
    changed = replace(setting, maxtext_build=build)
    other = MemoryBreakdown(
        changed, tuple(JAX.breakdown(changed, degrees, stage) for stage in held)
    )
    if found.temp_bytes is None or other.temp_bytes is None or not setting.model.experts:
        return ()
    if abs(other.temp_bytes / found.temp_bytes - 1) < BORDERLINE:
        return ()
    return (
        f"counts are those of MaxText {setting.maxtext_build}; with {build} the step takes "
        f"{format_bytes(other.temp_bytes)} (maxtext_build).",
    )


def project_many(setting: Setting, degrees: Degrees) -> PlanSizes:
    """Sizes of many plans: each entry of ``degrees`` takes the place of the setting's own.

    Model, strategy, rematerialisation and run options are those of ``setting``. Plans whose layers
    cannot be split over their stages are unknown.
    """
    names = [
        name for name, value in zip(Degrees._fields, degrees, strict=True) if value is not None
    ]
    arrays = np.broadcast_arrays(*(np.atleast_1d(getattr(degrees, name)) for name in names))
    spread = dict(zip(names, arrays, strict=True))
    plans = len(arrays[0])
    out = PlanSizes(*(np.full(plans, np.nan) for _ in PlanSizes._fields))
    keys = np.stack([spread[name] for name in _PER_GROUP], axis=1)
    for key in np.unique(keys, axis=0):
        chosen = np.flatnonzero((keys == key).all(axis=1))
        part = degrees._replace(**{name: values[chosen] for name, values in spread.items()})
        part = part._replace(**{k: int(n) for k, n in zip(_PER_GROUP, key, strict=True)})
        try:
            sizes = _worst_stage(setting, part, len(chosen))
        except SpecError:
            continue  # such layers cannot be split over so many stages
        for whole, values in zip(out, sizes, strict=True):
            whole[chosen] = values
    return out


def world_of(setting: Setting) -> World:
    """The account of a setting's world."""
    return MEGATRON if setting.world == "megatron" else JAX


def _worst_stage(setting: Setting, degrees: Degrees, plans: int) -> PlanSizes:
    """Sizes of the stage with the largest total, per plan."""
    world = world_of(setting)
    assert isinstance(degrees.pipeline, int)
    assert isinstance(degrees.virtual, int)
    worst = PlanSizes(*(np.full(plans, -np.inf) for _ in PlanSizes._fields))
    stages = world.stages(setting, degrees.pipeline, degrees.virtual)
    for stage in _distinct(setting.schedule, stages):
        found = world.breakdown(setting, degrees, stage)
        temp = np.max([_array(peak.size_bytes, plans) for peak in found.peaks], axis=0)
        args, outside = _array(total(found.args), plans), _array(total(found.outside), plans)
        is_worse = ~(args + temp + outside <= sum(worst))
        worst = PlanSizes(
            *(
                np.where(is_worse, new, old)
                for new, old in zip((args, temp, outside), worst, strict=True)
            )
        )
    return worst


def _distinct(schedule: str, stages: tuple[StageLayers, ...]) -> tuple[StageLayers, ...]:
    """The stages that can be the worst: of those that hold the same, the first.

    Where that is so: in these schedules a later stage never has more microbatches in flight.
    """
    if schedule not in ("gpipe", "circular", "1f1b", "interleaved"):
        return stages
    first: dict[tuple[object, ...], StageLayers] = {}
    for stage in stages:
        layers = (stage.dense_layers, stage.moe_layers, stage.linear_layers, stage.mtp_layers)
        first.setdefault((*layers, stage.has_embedding, stage.has_head), stage)
    return tuple(first.values())


def _array(amount: Amount | None, plans: int) -> Sizes:
    if amount is None:
        return np.full(plans, np.nan)
    return np.broadcast_to(np.asarray(amount, np.float64), (plans,))
