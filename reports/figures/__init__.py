"""Question: which figures does the section of a question have?

Every function is pure: document in, plotly figure out.
"""

from __future__ import annotations

from collections.abc import Callable

from moeprof.answers.bars import Figure
from moeprof.answers.document import Document
from moeprof.reports.figures import (
    allocated,
    flame,
    heap,
    load_maps,
    of_devices,
    of_step,
    roofline,
    stage_grid,
    wait_map,
)

Draw = Callable[[Document], Figure | None]
FIGURES: dict[str, tuple[tuple[str, Draw], ...]] = {
    "step_time": (("", of_step.step_time),),
    "breakdown": (("", of_step.breakdown),),
    "receive_buffers": (("", of_step.receive_buffers),),
    "timeline": (("", of_devices.timeline),),
    "collectives": (("", of_devices.collectives),),
    "stragglers": (("", of_devices.stragglers), (wait_map.WAITS, wait_map.waits)),
    "expert_load": (
        (load_maps.EXPERTS, load_maps.expert_load),
        (load_maps.RANKS, load_maps.rank_load),
    ),
    "roofline": (
        (roofline.ROOFS, roofline.roofline),
        (roofline.BEYOND, roofline.roof_time),
    ),
    "pipeline": (
        ("", of_devices.pipeline),
        (stage_grid.GRID, stage_grid.stage_grid),
    ),
    "memory": (
        (heap.OVER_PROGRAM, heap.over_program),
        (heap.AT_PEAK, heap.at_peak),
        (allocated.ALLOCATED, allocated.allocated),
    ),
    "ops": (
        (flame.BY_SCOPE, flame.by_scope),
        (flame.BY_SOURCE, flame.by_source),
    ),
}
"""The figures of each section: a caption, empty where the section's answer is one, and what draws
it from the document, or finds that there is nothing to draw."""
