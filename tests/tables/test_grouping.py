"""Groups of rows by several columns, and the different values of one."""

import numpy as np

from moeprof.columns.grouping import distinct, grouped_columns


def test_groups_hold_where_ranges_of_ids_multiply_past_64_bits():
    """Ids of programs are hashes: a range of 2**61 beside others must not run over."""
    ids = np.array([2**61, 5, 2**61, 5, 7])
    steps = np.array([3, 2**40, 3, 0, 2**40])
    groups = grouped_columns([steps, ids, ids])
    assert groups.of.tolist() == [1, 2, 1, 0, 3]
    assert grouped_columns([steps, ids], is_sorted=False).first.tolist() == [0, 1, 3, 4]


def test_different_values_come_in_order_each_once():
    assert distinct(np.array([4, 4, -1, 4, 2**62, 2**62])).tolist() == [-1, 4, 2**62]
    assert distinct(np.zeros(0, np.int64)).tolist() == []
