"""Question: what does a pipeline add to the work of its slowest stage?

Until the last stage has work, and after the first has none, stages wait. Of the time that one
microbatch takes on all *other* stages together, a schedule makes them wait for

    idle_rounds / ((p − 1) · rounds per microbatch)

which is 1 for 1F1B, 1 / v with v chunks per stage, and less for zero-bubble schedules; with equal
stages that gives the bubble of `moeprof.specs.schedule`, which has the sources.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moeprof.projector.setting import Count
from moeprof.projector.timing.formats import item_bytes
from moeprof.projector.timing.ground import Ground
from moeprof.projector.timing.links import slower
from moeprof.projector.timing.reals import Real
from moeprof.projector.timing.rows import TimeRow
from moeprof.specs.schedule import SINGLE, Schedule


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
