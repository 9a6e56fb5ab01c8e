"""The placement of kernels, against all placements that there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.ingest.placing.graph_match.solve import UNPLACED, Question, align


def score(q: Question, places: tuple[int, ...]) -> float:
    """Score of a placement (-1: none) by its definition; -inf where the order is broken."""
    total, last = 0.0, -1
    for kernel, place in enumerate(places):
        if place < 0:
            total += UNPLACED
            continue
        if place < last:
            return -np.inf
        total += q.fits[kernel, place]
        if place == last:
            total += q.again[kernel, place]
        elif last >= 0 or q.is_closed_before:
            total -= q.skips[last + 1 : place].sum()
        last = place
    if q.is_closed_after:
        total -= q.skips[last + 1 :].sum()
    return total


def every_placement(q: Question) -> dict[tuple[int, ...], float]:
    kernels, slots = q.fits.shape
    return {
        places: score(q, places) for places in itertools.product(range(-1, slots), repeat=kernels)
    }


def questions() -> st.SearchStrategy[Question]:
    halves = st.integers(-4, 8).map(lambda value: value / 2)
    fits = st.one_of(st.just(-np.inf), halves)

    def of_size(size: tuple[int, int]) -> st.SearchStrategy[Question]:
        kernels, slots = size
        cells = kernels * slots
        return st.builds(
            lambda fit, again, skips, before, after: Question(
                np.array(fit).reshape(size),
                -np.abs(np.array(again)).reshape(size),
                np.abs(np.array(skips)),
                before,
                after,
            ),
            st.lists(fits, min_size=cells, max_size=cells),
            st.lists(halves, min_size=cells, max_size=cells),
            st.lists(halves, min_size=slots, max_size=slots),
            st.booleans(),
            st.booleans(),
        )

    return st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(of_size)


@given(questions())
def test_no_other_placement_scores_more_and_margins_are_those_to_the_next_best(question):
    scores = every_placement(question)
    best = max(scores.values())
    found = align(question)
    assert scores[tuple(found.places.tolist())] == pytest.approx(best)
    for kernel, place in enumerate(found.places):
        others = max((s for p, s in scores.items() if p[kernel] != place), default=-np.inf)
        assert found.margins[kernel] == pytest.approx(best - others)


def test_a_kernel_that_fits_nothing_leaves_the_others_in_place():
    fits = np.array([[4.0, 0.0], [-np.inf, -np.inf], [0.0, 4.0]])
    found = align(Question(fits, np.zeros((3, 2)), np.ones(2), True, True))
    assert found.places.tolist() == [0, -1, 1]


def test_two_places_as_good_as_each_other_have_no_margin():
    found = align(Question(np.array([[4.0, 4.0]]), np.zeros((1, 2)), np.ones(2), True, True))
    assert found.margins.tolist() == [0.0]
