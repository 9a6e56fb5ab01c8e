"""Question: how long does a pipeline take, and why do its stages idle, in words?"""

from __future__ import annotations

from moeprof.answers.document import Finding
from moeprof.answers.values import written


def verdict(finding: Finding) -> str:
    """The pipeline in words: its shape, how long it takes, how much stages idle and why."""
    figures = {m["metric"]: written(m["value"], m["unit"]) for m in finding["headline"]}
    return (
        f"{figures['schedule']}: {figures['stages']} stages, {figures['microbatches']} "
        f"microbatches, {figures['chunks_per_stage']} chunk(s) per stage. Iteration "
        f"{figures['iteration']}: {figures['iteration_time']}. Bubble {figures['bubble_share']}, "
        f"{figures['schedule_share']} by the schedule. Of the iteration, stages idle: "
        f"{figures['fill_share']} to fill and drain, {figures['imbalance_share']} as stages are "
        f"unequal, {figures['wait_share']} in transfers and waits."
    )
