from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeprof.tables.intervals import cover, covered_by_group, last_begun

INTERVALS = st.lists(
    st.tuples(st.integers(-30, 60), st.integers(-30, 60)).map(sorted).map(tuple), max_size=12
)


def columns(intervals):
    return (
        np.array([a for a, _ in intervals], np.int64),
        np.array([b for _, b in intervals], np.int64),
    )


@given(INTERVALS, st.lists(st.integers(-40, 70)))
def test_cover_agrees_with_counting_points(intervals, stamps):
    points = {p for a, b in intervals for p in range(a, b)}
    covered = cover(*columns(intervals))
    spans = list(zip(covered.starts.tolist(), covered.ends.tolist(), strict=True))
    assert {p for a, b in spans for p in range(a, b)} == points
    assert covered.total == len(points)
    assert all(first[1] < second[0] for first, second in pairwise(spans))
    expected = [sum(p < at for p in points) for at in stamps]
    assert covered.until(np.array(stamps, np.int64)).tolist() == expected


@given(st.lists(INTERVALS, min_size=1, max_size=4))
def test_groups_that_overlap_in_time_are_counted_apart(groups):
    flat = [(g, *interval) for g, intervals in enumerate(groups) for interval in intervals]
    group = np.array([item[0] for item in flat], np.int64)
    starts, ends = columns([item[1:] for item in flat])
    expected = [len({p for a, b in intervals for p in range(a, b)}) for intervals in groups]
    assert covered_by_group(group, starts, ends, len(groups)).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 20))).map(sorted),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 20))),
)
def test_last_begun_is_what_counting_gives(pairs, wanted):
    found = last_begun(*columns(pairs), *columns(wanted))
    assert found.tolist() == [sum(pair <= one for pair in pairs) - 1 for one in wanted]


def test_a_group_that_spans_years_costs_the_others_nothing():
    starts = np.arange(1400, dtype=np.int64) * 100_000
    ends = starts + 40_000
    ends[-1] = 9 * 10**15
    covered = covered_by_group(np.arange(1400), starts, ends, 1400)
    assert covered[:-1].tolist() == [40_000] * 1399
    assert covered[-1] == 9 * 10**15 - starts[-1]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 20))).map(sorted),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 20))),
)
def test_last_begun_holds_where_stamps_times_groups_pass_64_bits(pairs, wanted):
    far = 2**58
    (groups, starts), (group, at) = columns(pairs), columns(wanted)
    found = last_begun(groups * 2**10, starts * far // 10, group * 2**10, at * far // 10)
    assert found.tolist() == [sum(pair <= one for pair in pairs) - 1 for one in wanted]
