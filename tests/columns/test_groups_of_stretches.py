"""Rows that follow on each other and are alike are grouped as one."""

import numpy as np
import pytest

from moeprof.columns.coded import Coded
from moeprof.columns.grouping import distinct, grouped_columns


def of_each_row(columns, *, is_sorted):
    """Group and first row, row by row."""
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    keys = sorted(set(rows)) if is_sorted else list(dict.fromkeys(rows))
    return [keys.index(row) for row in rows], [rows.index(key) for key in keys]


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("length", [1, 3, 40])
def test_rows_in_stretches_have_the_groups_of_each_by_itself(length, is_sorted):
    numbers = np.repeat(np.random.default_rng(0).integers(-2, 3, 2400 // length), length)
    texts = Coded(np.repeat(np.arange(numbers.size // 60) % 3, 60), ["a", "b", "c"])
    one = np.broadcast_to(np.int64(7), numbers.size)
    columns = [numbers, texts, one]
    found = grouped_columns(columns, is_sorted=is_sorted)
    of, first = of_each_row(columns, is_sorted=is_sorted)
    assert found.of.tolist() == of
    assert found.first.tolist() == first
    assert found.size.tolist() == np.bincount(of).tolist()


def test_ids_of_61_bits_on_many_devices_stay_apart_and_in_order():
    """Numbers of devices times such ids pass 64 bits."""
    ids = np.array([5, 2**61, 2**61 - 1, 9])
    device, run_id = np.repeat(np.arange(16), 4), np.tile(ids, 16)
    found = grouped_columns([device, run_id])
    assert run_id[found.first].tolist() == sorted(ids.tolist()) * 16
    assert device[found.first].tolist() == np.repeat(np.arange(16), 4).tolist()


def test_distinct_values_come_in_order_or_by_first_use():
    column = np.array([3, 1, 3, 2, 1])
    assert distinct(column).tolist() == [1, 2, 3]
    assert distinct(column, is_sorted=False).tolist() == [3, 1, 2]
    assert distinct(Coded.of(["b", "a", "b"]), is_sorted=False).tolist() == ["b", "a"]
