"""Question: which instruction ran each of a row of kernels, where only their order tells?

Kernels keep their order, and so do instructions; an instruction may run several kernels or none,
and a kernel may belong to none. The placement with the highest score wins (dynamic programming,
as Needleman and Wunsch 1970 align sequences). A second pass from the end gives the best score
with any one kernel moved elsewhere: the margin between both says how sure its place is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
