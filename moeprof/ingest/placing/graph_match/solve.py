"""Question: which slot does each kernel of one launch run, and how sure is that?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.align import Placement, Question, align
from moeprof.ingest.placing.graph_match.anchors import Segment, segments
from moeprof.ingest.placing.graph_match.confidence import ENCLOSED, NAMED, NOT_FOUND, OPEN, UNEVEN
from moeprof.ingest.placing.graph_match.kernel_names import KernelNames
from moeprof.ingest.placing.graph_match.kinds import (
    KERNELS,
    NEVER,
    again_scores,
    fit_table,
    skip_costs,
)
from moeprof.ingest.placing.graph_match.schedule import Schedule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FITS, _SKIPS, _AGAIN = fit_table(), skip_costs(), again_scores()
_OTHER = KERNELS.index("other")
_SHARED_NAME, _OWN_NAME = 6.0, 6.001  # its own name decides between equals, and no more
_RAN_ALONE = -3.0
"""Added to the fit of an instruction that is on record outside graphs."""
_CLEAR_MARGIN = 1.0
"""Half the cost of an instruction left out: any smaller margin is a choice between equals."""
_LARGEST = 2_000_000
"""Kernels × instructions of one segment; more than a graph without any anchor can need."""


@dataclass(frozen=True)
class Answer:
    """Per kernel its slot, -1 for none, and the confidence (`confidence`)."""

    slots: Ints
    confidence: Floats

    def of(self, kernels: Ints) -> Answer:
        """The answer of some of the kernels."""
        return Answer(self.slots[kernels], self.confidence[kernels])


@dataclass(frozen=True)
class Shared:
    """What all launches of a module share: ``ran_alone`` tells the slots on record."""

    schedule: Schedule
    names: KernelNames
    ran_alone: npt.NDArray[np.bool_]


def solve(shared: Shared, names: Ints, recorded: Ints, bounds: tuple[int, int]) -> Answer:
    """Match one launch.

    Args:
        shared: schedule and names of the module.
        names: entry of ``shared.names`` of each kernel, in the order in which they ran.
        recorded: slot of each kernel whose op is on record, -1 for the others.
        bounds: last slot before the launch and first after it (`Bounds`).
    """
    is_sole = shared.names.is_sole[names]
    known = np.where(recorded >= 0, recorded, np.where(is_sole, shared.names.slots[names], -1))
    answer = Answer(known.copy(), np.where(known >= 0, NAMED, NOT_FOUND))
    for segment in segments(shared.schedule, known, bounds):
        _place(shared, names, segment, answer)
    return answer


def _place(shared: Shared, names: Ints, segment: Segment, answer: Answer) -> None:
    """Fill in the kernels of a segment, as far as their order tells."""
    kernels, slots = segment.kernels, segment.slots
    if not len(slots) or len(kernels) * len(slots) > _LARGEST:
        return
    question = _question(shared, names[kernels], segment)
    placement = align(question)
    is_placed = placement.places >= 0
    is_named = shared.names.bodies[names[kernels]] >= 0
    says_nothing = shared.names.kinds[names[kernels]] == _OTHER
    is_even = _is_even(question, placement) and (all(segment.is_anchored) or not says_nothing.any())
    is_clear = (placement.margins >= _CLEAR_MARGIN) & (is_named | is_even)
    by_order = ENCLOSED if all(segment.is_bounded) else OPEN
    confidence = np.where(is_clear & shared.schedule.is_ordered, by_order, UNEVEN)
    answer.slots[kernels[is_placed]] = slots[placement.places[is_placed]]
    answer.confidence[kernels[is_placed]] = confidence[is_placed]


def _is_even(question: Question, placement: Placement) -> bool:
    """Whether every kernel has an instruction, and every instruction between two has a kernel."""
    if placement.places.min() < 0:
        return False
    first = 0 if question.is_closed_before else placement.places[0]
    stop = len(question.skips) if question.is_closed_after else placement.places[-1]
    left_out = question.skips[first:stop].copy()
    left_out[placement.places[placement.places < stop] - first] = 0.0
    return bool((left_out < _CLEAR_MARGIN).all())


def _question(shared: Shared, names: Ints, segment: Segment) -> Question:
    schedule, slots = shared.schedule, segment.slots
    kernel_kinds, kinds = shared.names.kinds[names], schedule.kinds[slots]
    fits = _FITS[kernel_kinds][:, kinds]
    bodies = shared.names.bodies[names][:, None]
    own = shared.names.slots[names][:, None]
    may_borrow = (schedule.bodies[slots] == bodies) & ~shared.names.has_own[slots]
    by_name = np.where(may_borrow, _SHARED_NAME, NEVER)
    by_name = np.where(slots == own, _OWN_NAME, by_name)
    # An anchor inside the launch may have its op on record: it runs here after all.
    ran_alone = np.where(shared.ran_alone[slots] & ~segment.has_run, _RAN_ALONE, 0.0)
    fits = np.where(bodies >= 0, by_name, fits) + ran_alone
    previous = np.concatenate((kernel_kinds[:1], kernel_kinds[:-1]))
    return Question(
        fits=fits,
        again=_AGAIN[previous][:, kinds],
        skips=np.where(shared.ran_alone[slots] | segment.has_run, 0.0, _SKIPS[kinds]),
        is_closed_before=segment.is_anchored[0],
        is_closed_after=segment.is_anchored[1],
    )
