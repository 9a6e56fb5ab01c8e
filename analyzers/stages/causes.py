"""Question: why is a pipeline stage idle: the schedule, unequal stages, or waits?

With work W_s of each stage in n rounds (microbatches times chunks), no order of work that a
schedule of equal rounds allows ends before

    T* = max W + (sum W − max W) / n

since the first round must have passed the other stages before the slowest one can work on it, and
the last one after it: the makespan of identical jobs in a flow shop (Johnson 1954, Naval Research
Logistics Quarterly 1). With equal stages this is the bubble of `moeprof.specs.schedule`; a schedule
whose bubble is another, as its backward work is split, counts the rounds that have its bubble.
The idle time T − W_s of a stage in an iteration of length T falls into

    fill       (sum W − W_s) / n             one round of each other stage, to fill and to drain
    imbalance  (max W − W_s) · (n − 1) / n   waits for the slowest stage in all other rounds
    wait       T − T*                        transfers, launches, waits beyond both

which add up to it exactly. An iteration may be shorter than T*: where rounds differ in length, or
weight gradients that run apart fill the bubble. Then fill is counted first, as far as the stage
idles at all, then imbalance.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from moeprof.specs.schedule import Schedule


def flow_rounds(schedule: Schedule) -> Fraction:
    """Rounds n of p equal stages whose bubble (p − 1) / (n + p − 1) is that of the schedule."""
    p, idle = schedule.stages, schedule.idle_rounds
    return Fraction(schedule.rounds * (p - 1), idle) if idle else Fraction(schedule.rounds)


def causes_of_idle(
    work_ns: np.ndarray, iteration_ns: int, rounds: Fraction
) -> dict[str, np.ndarray]:
    """``fill_ns``, ``imbalance_ns`` and ``wait_ns`` of each stage, int64; their sum is its idle.

    Args:
        work_ns: int64 [stages], at most `iteration_ns` each.
        iteration_ns: length of the iteration of the slowest stage.
        rounds: see `flow_rounds`; microbatches · chunks where backward work is one piece.
    """
    n, of = rounds.numerator, rounds.denominator
    exact = work_ns.astype(object)  # whole numbers of any size: products are beyond int64
    idle = iteration_ns - exact
    slowest = exact.max(initial=0)
    fill = np.minimum((exact.sum() - exact) * of // n, idle)
    uneven = (slowest - exact) * (n - of) // n
    imbalance = np.minimum(uneven, idle - fill)
    causes = {"fill_ns": fill, "imbalance_ns": imbalance, "wait_ns": idle - fill - imbalance}
    return {name: cause.astype("int64") for name, cause in causes.items()}
