"""Which event lies inside which, by two ways."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeprof.tables.intervals import nesting, nesting_by_stack

EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 6)), max_size=14)


def columns(events):
    track, start, length = (np.array(c, np.int64) for c in zip(*events, strict=True))
    return track, start, start + length


def test_children_by_hand():
    """Thread 0: a [0, 10) around b [1, 4) around c [2, 3), and d [4, 9); thread 1: e [2, 3)."""
    found = nesting(*columns([(0, 0, 10), (0, 1, 3), (0, 2, 1), (0, 4, 5), (1, 2, 1)]))
    assert found.parent.tolist() == [-1, 0, 1, 0, -1]
    assert found.depth.tolist() == [0, 1, 2, 1, 0]


def test_of_two_with_the_same_stamps_the_first_is_around_the_other():
    assert nesting(*columns([(0, 5, 2), (0, 5, 2)])).parent.tolist() == [-1, 0]


def test_what_crosses_the_end_of_another_is_inside_until_that_ends():
    found = nesting(*columns([(0, 0, 5), (0, 3, 6), (0, 6, 1)]))
    assert found.parent.tolist() == [-1, 0, 1]


@given(EVENTS)
def test_both_ways_agree(events):
    if events:
        fast, slow = nesting(*columns(events)), nesting_by_stack(*columns(events))
        assert fast.parent.tolist() == slow.parent.tolist()
        assert fast.depth.tolist() == slow.depth.tolist()


def test_stamps_since_1970_on_many_threads():
    """Stamps of 1.8e18 ns times 300 threads pass 64 bits."""
    base = 1_800_000_000_000_000_000
    track = np.repeat(np.arange(300), 2)
    start = base + np.tile([0, 10], 300)
    found = nesting(track, start, start + np.tile([100, 20], 300))
    assert found.parent.tolist() == [p for n in range(300) for p in (-1, 2 * n)]
