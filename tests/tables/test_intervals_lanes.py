import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeprof.tables.intervals import lanes, lanes_apart

INTERVAL = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12))


def lanes_of(rows: list[tuple[int, int, int]]) -> list[int]:
    """Lanes of (track, start, end)."""
    track, start, end = np.array(rows, np.int64).reshape(-1, 3).T
    return lanes(track, start, end).tolist()


def partly_overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    (_, b), (c, d) = sorted([one, other], key=lambda span: (span[0], -span[1]))
    return c < b < d


def test_intervals_that_follow_or_enclose_each_other_share_a_lane():
    assert lanes_of([]) == []
    assert lanes_of([(0, 0, 5), (0, 5, 9), (0, 12, 12)]) == [0, 0, 0]
    assert lanes_of([(0, 0, 9), (0, 2, 9), (0, 3, 4), (0, 4, 9)]) == [0, 0, 0, 0]


def test_however_deep_intervals_lie_inside_each_other_one_lane_is_enough():
    deep = [(0, at, 400 - at) for at in range(150)]
    assert lanes_of(deep) == [0] * 150
    assert lanes_of([*deep, (0, 200, 399)]) == [0] * 150 + [1]


def test_partial_overlap_moves_the_later_one_and_only_in_its_track():
    assert lanes_of([(0, 10, 16), (0, 13, 22)]) == [0, 1]
    assert lanes_of([(0, 10, 16), (1, 13, 22)]) == [0, 0]
    # the third overlaps the second, which lies in the first, and not the first
    assert lanes_of([(0, 0, 100), (0, 10, 20), (0, 15, 30)]) == [0, 0, 1]


def test_rows_come_in_any_order():
    assert lanes_of([(0, 13, 22), (0, 10, 16), (0, 30, 31)]) == [1, 0, 0]


@given(st.lists(INTERVAL, max_size=25))
def test_no_two_of_a_lane_partly_overlap(rows):
    spans = [(track, start, start + length) for track, start, length in rows]
    lane = lanes_of(spans)
    for at, (track, *one) in enumerate(spans):
        for before, (other_track, *other) in enumerate(spans[:at]):
            if track == other_track and lane[at] == lane[before]:
                assert not partly_overlap(tuple(one), tuple(other))


@given(st.lists(INTERVAL, max_size=25))
def test_a_track_without_partial_overlap_has_one_lane(rows):
    spans = [(track, start, start + length) for track, start, length in rows]
    calm = {
        track
        for track in range(3)
        if not any(
            partly_overlap(a[1:], b[1:])
            for i, a in enumerate(spans)
            for b in spans[:i]
            if a[0] == b[0] == track
        )
    }
    assert {lane for lane, span in zip(lanes_of(spans), spans, strict=True) if span[0] in calm} <= {
        0
    }


def apart_of(rows: list[tuple[int, int, int]]) -> list[int]:
    track, start, end = np.array(rows, np.int64).reshape(-1, 3).T
    return lanes_apart(track, start, end).tolist()


def test_what_holds_others_shares_its_lane_with_none_inside_it():
    assert apart_of([]) == []
    assert apart_of([(0, 0, 9), (0, 2, 5), (0, 3, 4), (0, 5, 7), (1, 2, 5)]) == [0, 1, 2, 1, 0]
    assert apart_of([(0, 5, 9), (0, 0, 5), (0, 9, 9)]) == [0, 0, 0]


@given(st.lists(INTERVAL, max_size=25))
def test_each_takes_the_lowest_lane_that_is_free(rows):
    spans = [(track, start, start + length) for track, start, length in rows]
    found = apart_of(spans)
    taken: dict[tuple[int, int], int] = {}
    for at in sorted(range(len(spans)), key=lambda n: (spans[n], n)):
        track, start, end = spans[at]
        lane = next(n for n in range(len(spans)) if taken.get((track, n), 0) <= start)
        assert found[at] == lane
        taken[track, lane] = end
