"""Question: which slot does each kernel of one launch run, by order and cost, and how surely?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.anchors import KernelNames, Segment, segments
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
    """Per kernel its slot, -1 for none, and the confidence, a level below."""

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


# How sure is a matched op? The only place that gives the levels a meaning.
#
# All levels come from one launch of a graph, whose kernels are aligned in time order with the
# instructions in the order of the compiler's schedule.

NAMED = 1.0
"""The kernel's name is that of one instruction, and no other instruction could share its kernel."""

ENCLOSED = 0.8
"""By order, between a known instruction before and one after: every other placement would leave
an instruction without a kernel, or a kernel without an instruction."""

OPEN = 0.6
"""The same, but known on one side only (the beginning or the end of a graph)."""

UNEVEN = 0.3
"""By order, where that does not settle it: counts differ, another placement fits as well, names
say nothing at all, or the program carries no schedule. A guess."""

NOT_FOUND = 0.0
"""No instruction fits: the kernel stays without an op."""


# Which instruction ran each of a row of kernels, where only their order tells?
#
# Kernels keep their order, and so do instructions; an instruction may run several kernels or
# none, and a kernel may belong to none. The placement with the highest score wins (dynamic
# programming, as Needleman and Wunsch 1970 align sequences). A second pass from the end gives the
# best score with any one kernel moved elsewhere: the margin between both says how sure its place
# is.

UNPLACED = -3.0
"""Score of a kernel that belongs to no instruction of the row."""


@dataclass(frozen=True)
class Question:
    """``n`` kernels and ``m`` instructions, both in order.

    fits: score that kernel i belongs to instruction j; -inf where it cannot. Shape (n, m).
    again: what it adds that j runs kernel i after it ran the kernel before. Shape (n, m).
    skips: cost of an instruction that runs no kernel. Shape (m,).
    is_closed_before, is_closed_after: whether instructions left out at that end cost as well.
    """

    fits: Floats
    again: Floats
    skips: Floats
    is_closed_before: bool
    is_closed_after: bool


@dataclass(frozen=True)
class Placement:
    """``places`` is the instruction of each kernel, -1 for none; ``margins`` how much worse the
    best placement is that puts the kernel anywhere else (0: there is one as good)."""

    places: Ints
    margins: Floats


def align(question: Question) -> Placement:
    """The best placement of all kernels. Costs n · m."""
    q = _with_start(question)
    kernels = len(q.fits)
    before = np.concatenate(([0.0], np.cumsum(q.skips)))  # cost of leaving out all up to a column
    ahead = _ahead(q, before)
    best, state = ahead[0, 0], 0
    places = np.full(kernels, -1, np.int64)
    reached, is_placed = _behind(q, before)
    others = np.empty(kernels)
    for i in range(kernels):
        options = _enter(q, before, i, state) + ahead[i + 1]
        stay = q.fits[i, state] + q.again[i, state] + ahead[i + 1, state]
        unplaced = UNPLACED + ahead[i + 1, state]
        choice = int(np.argmax(options))
        through = is_placed[i] + ahead[i + 1]
        if unplaced < max(options[choice], stay):
            state = choice if options[choice] > stay else state
            places[i] = state - 1
            through[state] = -np.inf
            others[i] = max(through.max(), (reached[i] + UNPLACED + ahead[i + 1]).max())
        else:
            others[i] = through.max()
    with np.errstate(invalid="ignore"):
        margins = np.where(np.isfinite(others), best - others, np.inf)
    return Placement(places, np.maximum(margins, 0.0))


def _with_start(question: Question) -> Question:
    """The same question with a column in front that stands for "nothing has run yet"."""
    kernels = len(question.fits)
    never = np.full((kernels, 1), -np.inf)
    return Question(
        fits=np.hstack((never, question.fits)),
        again=np.hstack((np.zeros((kernels, 1)), question.again)),
        skips=np.concatenate(([0.0], question.skips)),
        is_closed_before=question.is_closed_before,
        is_closed_after=question.is_closed_after,
    )


def _enter(q: Question, before: Floats, kernel: int, state: int) -> Floats:
    """Score of going from column `state` to any later one with `kernel`; -inf for the others."""
    cost = before[:-1] - before[state + 1]
    if state == 0 and not q.is_closed_before:
        cost = np.zeros_like(cost)
    score: Floats = q.fits[kernel] - cost
    score[: state + 1] = -np.inf
    return score


def _ahead(q: Question, before: Floats) -> Floats:
    """Best score of kernels i and later, where column j ran the last one before. (n + 1, m + 1)."""
    kernels, columns = q.fits.shape
    ahead = np.empty((kernels + 1, columns))
    ahead[kernels] = before[1:] - before[-1] if q.is_closed_after else 0.0
    for i in range(kernels - 1, -1, -1):
        rest = q.fits[i] + ahead[i + 1]
        later = np.full(columns, -np.inf)
        later[:-1] = np.maximum.accumulate((rest - before[:-1])[:0:-1])[::-1] + before[1:-1]
        if not q.is_closed_before and columns > 1:
            later[0] = rest[1:].max()
        ahead[i] = np.maximum(np.maximum(later, rest + q.again[i]), UNPLACED + ahead[i + 1])
    return ahead


def _behind(q: Question, before: Floats) -> tuple[Floats, Floats]:
    """Best score up to kernel i: of those before it with column j last, and with j running it."""
    kernels, columns = q.fits.shape
    reached = np.full((kernels + 1, columns), -np.inf)
    reached[0, 0] = 0.0
    placed = np.full((kernels, columns), -np.inf)
    for i in range(kernels):
        last = reached[i]
        entered = np.full(columns, -np.inf)
        entered[1:] = np.maximum.accumulate(last + before[1:])[:-1] - before[1:-1]
        if not q.is_closed_before:
            entered[1:] = np.maximum(entered[1:], last[0])
        placed[i] = q.fits[i] + np.maximum(entered, last + q.again[i])
        reached[i + 1] = np.maximum(placed[i], last + UNPLACED)
    return reached, placed
