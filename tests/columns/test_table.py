"""Tables on NumPy alone: against values worked out by hand, and against pandas."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.columns.coded import Coded, stacked
from moeprof.columns.grouping import Groups, grouped, pairs_of, places_in, unique_rows
from moeprof.columns.table import Table, isin, texts_of
from moeprof.errors import TableError


def table() -> Table:
    return Table(
        {
            "host": Coded.of(["b", "a", "b", "b"]),
            "start_ns": np.array([30, 10, 20, 10]),
            "share": np.array([0.5, np.nan, 0.25, 1.0]),
            "op": texts_of(["x", "y", "x", "z"]),
            "is_used": np.array([True, False, True, True]),
        }
    )


def test_columns_of_several_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"have \[1, 2\] rows"):
        Table({"a": np.zeros(1), "b": np.zeros(2)})
    with pytest.raises(ValueError, match=r"have \[3, 4\] rows"):
        table().assign(more=np.zeros(3))


def test_rows_are_chosen_by_flags_places_and_slices() -> None:
    flags = np.array([False, True, True, False])
    for chosen in (flags, np.array([1, 2]), [1, 2], slice(1, 3)):
        found = table()[chosen]
        assert len(found) == 2
        assert found["host"].tolist() == ["a", "b"]
        assert found["start_ns"].tolist() == [10, 20]
        assert found["op"].tolist() == ["y", "x"]
    with pytest.raises(IndexError, match="2 flags for 4 rows"):
        table()[flags[:2]]


def test_rows_of_rows_are_those_of_the_first_table() -> None:
    found = table()[np.array([3, 2, 0])][np.array([True, False, True])]
    assert found["start_ns"].tolist() == [10, 30]
    assert found.assign(n=1).select("n", "host").dicts() == [{"n": 1, "host": "b"}] * 2


def test_a_column_is_copied_when_it_is_looked_at() -> None:
    whole = table()
    rows = whole[np.array([0, 1])]
    assert not isinstance(rows._held["start_ns"], np.ndarray)
    assert rows["start_ns"] is rows["start_ns"]
    assert isinstance(rows._held["start_ns"], np.ndarray)


def test_one_value_for_all_rows_takes_the_memory_of_one() -> None:
    same = table().assign(step=-1, host="h")
    for found in (same, same[np.array([0, 2])]):
        assert found["step"].strides == (0,)
        assert found["host"].codes.strides == (0,)
        assert set(found["host"].tolist()) == {"h"}


def test_frames_and_tables_turn_into_each_other() -> None:
    frame = table().pandas()
    assert frame.dtypes.astype(str).to_dict() == {
        "host": "category",
        "start_ns": "int64",
        "share": "float64",
        "op": "str",
        "is_used": "bool",
    }
    assert table().pandas().equals(frame)
    back = Table.of(frame)
    assert back.pandas().equals(frame)
    for name in table():
        assert back[name].tolist() == pytest.approx(table()[name].tolist(), nan_ok=True)
    assert pickle.loads(pickle.dumps(table()[slice(0, 2)]))["host"].tolist() == ["b", "a"]


def test_order_is_that_of_values_texts_and_missing_ones_last() -> None:
    assert table().order("host", "start_ns").tolist() == [1, 3, 2, 0]
    assert table().order("start_ns").tolist() == [1, 3, 2, 0]
    assert table().order("share").tolist() == [2, 0, 3, 1]
    assert table().order("host", "start_ns", falling=["start_ns"]).tolist() == [1, 0, 2, 3]


def test_texts_are_compared_by_entry() -> None:
    hosts = table()["host"]
    assert (hosts == "b").tolist() == [True, False, True, True]
    assert (hosts != Coded.of(["b", "b", "a", "b"])).tolist() == [False, True, True, False]
    assert isin(hosts, ["a", "c"]).tolist() == [False, True, False, False]
    assert isin(table()["op"], {"z"}).tolist() == [False, False, False, True]
    assert isin(table()["start_ns"], [10]).tolist() == [False, True, False, True]
    replaced = hosts.replaced(np.array([True, False, False, True]), "c")
    assert replaced.tolist() == ["c", "a", "b", "c"]
    assert stacked([hosts, Coded.of(["c", "a"])]).tolist() == ["b", "a", "b", "b", "c", "a"]


def test_groups_sum_up_by_hand() -> None:
    groups = grouped(table(), "host", is_sorted=False)
    assert groups.of.tolist() == [0, 1, 0, 0]
    assert groups.sum(table()["start_ns"]).tolist() == [60, 10]
    assert groups.sum(table()["is_used"]).tolist() == [3, 0]
    assert groups.min(table()["start_ns"]).tolist() == [10, 10]
    assert groups.max(table()["start_ns"]).tolist() == [30, 10]
    assert groups.all(table()["is_used"]).tolist() == [True, False]
    assert groups.any(table()["is_used"]).tolist() == [True, False]
    assert groups.distinct(table()["op"]).tolist() == [2, 1]
    assert groups.median(table()["start_ns"]).tolist() == [20, 10]
    assert groups.place().tolist() == [0, 0, 1, 2]
    assert unique_rows(table(), "op")["start_ns"].tolist() == [30, 10, 10]


def test_sums_of_whole_numbers_are_exact_beyond_those_of_floats() -> None:
    groups = Groups(np.zeros(3, np.int64), np.zeros(1, np.int64))
    assert groups.sum(np.array([2**60, 1, 1])).tolist() == [2**60 + 2]


def test_rows_of_two_tables_meet_by_their_values() -> None:
    devices = Table({"host": Coded.of(["a", "b"]), "rank": np.array([7, 8])})
    assert places_in(table(), devices, "host").tolist() == [1, 0, 1, 1]
    lacking = devices[np.array([0])]
    assert places_in(table(), lacking, "host").tolist() == [-1, 0, -1, -1]
    left, right = pairs_of(devices, table(), "host")
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2), (1, 3)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.booleans()), min_size=1))
def test_groups_are_those_of_pandas(rows: list[tuple[str, int, bool]]) -> None:
    frame = pd.DataFrame(rows, columns=["host", "step", "is_used"])
    given_rows = Table(
        {
            "host": Coded.of(frame["host"]),
            "step": frame["step"].to_numpy(),
            "is_used": frame["is_used"].to_numpy(),
        }
    )
    values = np.arange(len(rows))
    for is_sorted in (True, False):
        codes = frame.assign(host=given_rows["host"].codes)
        oracle = codes.assign(n=values).groupby(["host", "step", "is_used"], sort=is_sorted)["n"]
        groups = grouped(given_rows, "host", "step", "is_used", is_sorted=is_sorted)
        assert groups.of.tolist() == oracle.ngroup().tolist()
        assert groups.sum(values).tolist() == oracle.sum().tolist()
        assert groups.size.tolist() == oracle.size().tolist()
        assert groups.first.tolist() == oracle.first().tolist()
        assert groups.place().tolist() == oracle.cumcount().tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e9, 1e9)), min_size=1, max_size=60))
def test_sums_of_floats_are_those_of_pandas_to_the_last_digit(
    rows: list[tuple[int, float]],
) -> None:
    frame = pd.DataFrame(rows, columns=["step", "ns"])
    groups = grouped(Table.of(frame), "step")
    assert groups.sum(frame["ns"].to_numpy()).tolist() == frame.groupby("step")["ns"].sum().tolist()


def test_sums_of_very_many_floats_lose_nothing_that_is_seen() -> None:
    values = np.full(10_000, 0.1)
    groups = Groups(np.zeros(10_000, np.int64), np.zeros(1, np.int64))
    assert groups.sum(values).tolist() == [pytest.approx(1000.0, rel=1e-15)]
    short = Groups(np.zeros(2, np.int64), np.zeros(1, np.int64))
    assert short.sum(np.array([np.inf, 1.0])).tolist() == [np.inf]


def test_frames_of_users_are_taken_as_they_mean_it() -> None:
    narrow = pd.DataFrame({"device": np.array([-100, 100], np.int8)})
    assert Table.of(narrow)["device"].dtype == np.int64
    lacking = pd.DataFrame({"kind": pd.Categorical(["a", None])})
    with pytest.raises(TableError, match="column 'kind': expected a text in each row, found none"):
        Table.of(lacking)
    frame = table().pandas()
    frame["start_ns"] = 0
    frame.loc[0, "share"] = 7.0
    assert table().pandas()["start_ns"].tolist() == [30, 10, 20, 10]
