"""Groups of rows by several columns, and the different values of one."""

import numpy as np

from moeprof.columns.grouping import distinct, grouped_columns


def test_groups_are_in_order_where_ranges_of_ids_multiply_past_64_bits():
    """Ids of programs are hashes: their range, 2**61, times eight places must not run over."""
    places, ids = np.arange(8), np.array([5, 2**61] * 4)
    assert grouped_columns([places, ids]).first.tolist() == list(range(8))
    assert grouped_columns([ids, ids, places[::-1]]).first.tolist() == [6, 4, 2, 0, 7, 5, 3, 1]


def test_different_values_come_in_order_each_once():
    assert distinct(np.array([4, 4, -1, 4, 2**62, 2**62])).tolist() == [-1, 4, 2**62]
    assert distinct(np.zeros(0, np.int64)).tolist() == []
