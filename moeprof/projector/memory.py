"""Question: how much memory does a training run need, in closed form, and what was assumed?

`project` answers for one setting, with every row and with notes on what it cannot know;
`project_many` for thousands of plans at once, sizes alone. Both evaluate the same functions; the
second passes arrays where the first passes numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, Peak, Phase, total
from moeprof.projector.setting import Amount, Degrees, Setting, degrees_of
from moeprof.specs.stages import StageLayers

Sizes = npt.NDArray[np.float64]
_PER_GROUP = ("pipeline", "virtual", "microbatches")
"""Numbers in an evaluation: what a stage holds depends on them."""


class PlanSizes(NamedTuple):
    """Bytes of each plan's worst stage at a step, float64; nan where unknown.

    ``library_temp`` is the arena where libraries compute all products.
    ``other_inside`` is args + temp of the largest phase beside the step whose size is known,
    what then lies ``other_outside``; -inf where none is known.
    """

    args: Sizes
    temp: Sizes
    library_temp: Sizes
    outside: Sizes
    other_inside: Sizes
    other_outside: Sizes


def project(setting: Setting) -> MemoryBreakdown:
    """The memory of one device: every stage, every row, and what was assumed.

    Raises:
        SpecError: the layers cannot be split over the stages.
    """
    degrees, program = degrees_of(setting), setting.program
    held = program.stages(setting, setting.plan.pipeline, setting.plan.virtual)
    stages = tuple(program.breakdown(setting, degrees, stage) for stage in held)
    of_step = MemoryBreakdown(setting, stages)
    others: dict[str, Phase] = {}
    for stage, step in zip(held, stages, strict=True):
        for phase in program.phases(setting, degrees, stage, step):
            others[phase.name] = _more(others.get(phase.name), phase)
    at = next(stage for stage, step in zip(held, stages, strict=True) if step is of_step.worst)
    host = program.on_host(setting, degrees, at)
    return replace(of_step, others=tuple(others.values()), host=host)


def _more(one: Phase | None, other: Phase) -> Phase:
    """The phase of the stage that needs more of a device, with the host rows of the fuller host."""
    if one is None:
        return other
    sizes = [phase.inside_bytes for phase in (one, other)]
    largest = other if None in sizes or sizes[1] > sizes[0] else one  # type: ignore[operator]
    hosts = max((one, other), key=lambda phase: phase.host_bytes or 0)
    return replace(largest, host=hosts.host)


def project_many(setting: Setting, degrees: Degrees) -> PlanSizes:
    """Sizes of many plans: each entry of ``degrees`` takes the place of the setting's own.

    Model, strategy, rematerialisation and run options are those of ``setting``. Plans whose layers
    cannot be split over their stages are unknown.
    """
    given = {name: value for name, value in degrees._asdict().items() if value is not None}
    plans = max(np.size(value) for value in given.values())
    # What is one number stays one: it costs a hundredth of the time of an array.
    spread = {k: np.broadcast_to(v, plans) for k, v in given.items() if isinstance(v, np.ndarray)}
    out = PlanSizes(*(np.full(plans, np.nan) for _ in PlanSizes._fields))
    keys = np.stack([np.broadcast_to(given[name], plans) for name in _PER_GROUP], axis=1)
    for key in sorted(set(map(tuple, keys.tolist()))):
        chosen = np.flatnonzero((keys == key).all(axis=1))
        part = degrees._replace(**{name: values[chosen] for name, values in spread.items()})
        part = part._replace(**dict(zip(_PER_GROUP, key, strict=True)))
        try:
            sizes = _worst_stage(setting, part, len(chosen))
        except SpecError:
            continue  # such layers cannot be split over so many stages
        for whole, values in zip(out, sizes, strict=True):
            whole[chosen] = values
    return out


def _worst_stage(setting: Setting, degrees: Degrees, plans: int) -> PlanSizes:
    """Sizes of the stage with the largest total, per plan."""
    program = setting.program
    assert isinstance(degrees.pipeline, int)
    assert isinstance(degrees.virtual, int)
    worst: tuple[Sizes, ...] = (np.full(plans, -np.inf),) * 4
    other = (np.full(plans, -np.inf), np.zeros(plans))
    stages = program.stages(setting, degrees.pipeline, degrees.virtual)
    for stage in _distinct(setting.schedule, stages):
        found = program.breakdown(setting, degrees, stage)
        args, outside = _array(total(found.args), plans), _array(total(found.outside), plans)
        temp = _fullest(found.peaks, plans)
        most = _fullest((*found.peaks, *found.libraries), plans) if found.libraries else temp
        is_worse = ~(args + temp + outside <= worst[0] + worst[1] + worst[3])
        sizes = (args, temp, most, outside)
        worst = tuple(np.where(is_worse, *pair) for pair in zip(sizes, worst, strict=True))
        for phase in program.phases(setting, degrees, stage, found, with_host=False):
            inside = _array(total(phase.args), plans) + _fullest(phase.peaks, plans)
            beside = _array(phase.outside_bytes, plans)
            counted = 0.0 if program.has_pool else 1.0
            is_larger = inside + counted * beside > other[0] + counted * other[1]
            other = (np.where(is_larger, inside, other[0]), np.where(is_larger, beside, other[1]))
    args, temp, most, outside = worst
    return PlanSizes(args, temp, most, outside, *other)


def _fullest(peaks: Sequence[Peak], plans: int) -> Sizes:
    """Bytes of the fullest peak of each plan; unknown where one is."""
    sizes = [_array(peak.size_bytes, plans) for peak in peaks] or [np.zeros(plans)]
    fullest: Sizes = np.max(sizes, axis=0)
    return fullest


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
