"""Question: between which known kernels of a launch do its unknown ones lie?

Kernels whose instruction is known (by name or on record) are anchors. Work of two streams can
start out of order: the longest rising chain of anchors counts. Where an anchor comes again the
graph runs a loop, and a new pass begins.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.kinds import INSTRUCTIONS, SEVERAL
from moeprof.ingest.placing.graph_match.schedule import Schedule

Ints = npt.NDArray[np.int64]

_OPEN_REACH = 64
"""How many slots beyond four per kernel an end without an anchor may reach."""

_RUNS_SEVERAL = np.array([kind in SEVERAL for kind in INSTRUCTIONS])


@dataclass(frozen=True)
class Segment:
    """Unknown ``kernels`` in a row (places in the launch) and the ``slots`` they may run, in order.

    ``has_run``: which of the slots are anchors, and so have a kernel already.
    ``is_anchored``: whether an anchor of the launch itself stands before, and after.
    ``is_bounded``: whether anything known does.
    """

    kernels: Ints
    slots: Ints
    has_run: npt.NDArray[np.bool_]
    is_anchored: tuple[bool, bool]
    is_bounded: tuple[bool, bool]


def segments(schedule: Schedule, known: Ints, bounds: tuple[int, int]) -> list[Segment]:
    """Cut a launch at its anchors; ``known`` are the slots of its kernels, -1 where not known."""
    anchors = _anchors(known)
    is_open = known < 0
    found = []
    for left, right in zip([None, *anchors], [*anchors, None], strict=True):
        start = left[0] + 1 if left else 0
        stop = right[0] if right else len(known)
        kernels = start + np.flatnonzero(is_open[start:stop])
        if not len(kernels):
            continue
        ends = (left[1] if left else None, right[1] if right else None)
        found.append(_segment(schedule, kernels, ends, bounds))
    return found


def _segment(
    schedule: Schedule,
    kernels: Ints,
    ends: tuple[int | None, int | None],
    bounds: tuple[int, int],
) -> Segment:
    left, right = ends
    slots = _between(schedule, ends, bounds, reach=4 * len(kernels) + _OPEN_REACH)
    has_run = (slots == left) | (slots == right)
    is_used = ~has_run | _RUNS_SEVERAL[schedule.kinds[slots]]
    is_anchored = (left is not None, right is not None)
    return Segment(
        kernels=kernels,
        slots=slots[is_used],
        has_run=has_run[is_used],
        is_anchored=is_anchored,
        is_bounded=(
            is_anchored[0] or bounds[0] >= 0,
            is_anchored[1] or bounds[1] < len(schedule.ops),
        ),
    )


def _anchors(known: Ints) -> list[tuple[int, int]]:
    """(kernel, slot) of the anchors that count, by kernel."""
    passes: list[list[tuple[int, int]]] = [[]]
    seen: set[int] = set()
    last = -1
    for kernel in np.flatnonzero(known >= 0).tolist():
        slot = int(known[kernel])
        if slot in seen and slot != last:
            passes.append([])
            seen.clear()
        passes[-1].append((kernel, slot))
        seen.add(slot)
        last = slot
    return [anchor for one in passes for anchor in _rising(one)]


def _rising(anchors: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest chain whose slots never fall (patience sorting)."""
    tails: list[int] = []
    chain: list[int] = []
    before = [-1] * len(anchors)
    for index, (_, slot) in enumerate(anchors):
        length = bisect_left(tails, slot + 1)
        before[index] = chain[length - 1] if length else -1
        tails[length : length + 1] = [slot]
        chain[length : length + 1] = [index]
    picked = []
    index = chain[-1] if chain else -1
    while index >= 0:
        picked.append(anchors[index])
        index = before[index]
    return picked[::-1]


def _between(
    schedule: Schedule,
    ends: tuple[int | None, int | None],
    bounds: tuple[int, int],
    *,
    reach: int,
) -> Ints:
    """Slots from one anchor to the next, both included; as far as the bounds without an anchor."""
    left, right = ends
    low, high = bounds
    if left is None:
        if right is None:
            return np.arange(low + 1, high)
        start = low + 1 if low < right else 0
        return np.arange(max(start, right - reach), right + 1)
    if right is None:
        stop = high if high > left else len(schedule.ops)
        return np.arange(left, min(stop, left + 1 + reach))
    return np.arange(left, right + 1) if left <= right else _around(schedule, left, right)


def _around(schedule: Schedule, left: int, right: int) -> Ints:
    """Slots from `left` to the end of the loop that holds both, then from its start to `right`."""
    for slot in (left, right):
        start, end = int(schedule.loop_starts[slot]), int(schedule.loop_ends[slot])
        if start <= right < left < end:
            return np.concatenate((np.arange(left, end), np.arange(start, right + 1)))
    return np.array([left, right])
