"""Labels that are given as texts are in the order of the alphabet, in tables as in frames."""

import numpy as np

from moeprof.columns.coded import Coded, by_alphabet
from moeprof.columns.grouping import distinct, grouped
from moeprof.tables.schema import Column, Schema

SCHEMA = Schema("pieces", (Column("kind", "label", "", "of a piece"), Column("n", "int64", "", "")))


def test_used_texts_alone_are_sorted_and_entries_stay():
    column = Coded(np.array([2, 0, 2], np.int8), ["sync", "unused", "copy"])
    found = by_alphabet(column)
    assert (found.texts, found.tolist()) == (["copy", "sync"], ["copy", "sync", "copy"])
    assert by_alphabet(Coded(np.zeros(0, np.int8), ["unused"])).texts == []


def test_rows_are_grouped_in_the_order_of_a_frame():
    rows = [{"kind": kind, "n": n} for n, kind in enumerate(["sync", "copy", "op", "copy"])]
    table, frame = SCHEMA.table(rows), SCHEMA.frame(rows)
    groups = grouped(table, "kind")
    sums = frame.groupby("kind", observed=True)["n"].sum()
    assert table["kind"][groups.first].tolist() == sums.index.tolist() == ["copy", "op", "sync"]
    assert groups.sum(table["n"]).tolist() == sums.tolist() == [4, 2, 0]


def test_different_values_are_in_order_whether_they_stand_together_or_apart():
    assert distinct(np.array([7, 7, -1, 7, 3])).tolist() == [-1, 3, 7]
    assert distinct(np.broadcast_to(np.int64(5), 4)).tolist() == [5]
    assert distinct(np.zeros(0, np.int64)).tolist() == []
