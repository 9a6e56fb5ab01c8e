"""Question: between which kernels of a launch, known by name or record, do its others lie?

Kernels whose instruction is known (by name or on record) are anchors. Work of two streams can
start out of order: the longest rising chain of anchors counts. Where an anchor comes again the
graph runs a loop, and a new pass begins.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.kinds import INSTRUCTIONS, KERNELS, SEVERAL, kernel_kind
from moeprof.ingest.placing.graph_match.schedule import Schedule
from moeprof.vocabulary import source_name

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


# What does the name of a kernel say about its instruction?

_PART = re.compile(r"_{1,2}\d+$")
"""Ends the names of several kernels of one instruction: sort_1, sort_1__1, sort_1__2."""


@dataclass(frozen=True)
class KernelNames:
    """One entry per distinct (name, kind). ``kinds`` index `KERNELS`.

    ``slots`` is the instruction that the name says, -1 where it says none; ``bodies`` its body,
    -1 likewise. ``has_own`` has one entry per slot: whether a kernel of its own name was seen. A
    slot without one may run the kernel of another slot with the same body. ``is_sole`` where no
    slot but the named one can run the kernel.
    """

    kinds: Ints
    slots: Ints
    bodies: Ints
    is_sole: npt.NDArray[np.bool_]
    has_own: npt.NDArray[np.bool_]


def read_names(names: Sequence[str], kinds: Sequence[str], schedule: Schedule) -> KernelNames:
    """`KernelNames` of distinct names of device work with their ``kind`` in `EVENTS`."""
    rows = [_read(name, kind, schedule) for name, kind in zip(names, kinds, strict=True)]
    slots = np.array([slot for _, slot, _ in rows], np.int64)
    is_exact = np.array([exact for _, _, exact in rows], np.bool_)
    has_own = np.zeros(len(schedule.ops), np.bool_)
    has_own[slots[is_exact]] = True
    borrowers = np.bincount(schedule.bodies[~has_own], minlength=len(schedule.ops))
    bodies = np.full(len(rows), -1, np.int64)
    bodies[slots >= 0] = schedule.bodies[slots[slots >= 0]]
    return KernelNames(
        kinds=np.array([kind for kind, _, _ in rows], np.int64),
        slots=slots,
        bodies=bodies,
        is_sole=is_exact & (borrowers[bodies] == 0),
        has_own=has_own,
    )


def _read(name: str, kind: str, schedule: Schedule) -> tuple[int, int, bool]:
    """(kind, slot or -1, whether the name is the instruction's to the letter)."""
    if kind == "kernel":
        name = source_name(name)
        slot = schedule.slot_of_name.get(name, -1)
        if slot >= 0:
            return KERNELS.index("named"), slot, True
        base = _PART.sub("", name)
        slot = schedule.slot_of_name.get(base, -1) if base != name else -1
        if slot >= 0:
            return KERNELS.index("named"), slot, "__" in name[len(base) :]
    return KERNELS.index(kernel_kind(name, kind)), -1, False
