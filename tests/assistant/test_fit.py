"""An answer is cut to the limit, whatever it holds, and says what is missing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.assistant.fit import LIMIT, Cuttable, fitted, size_of, text_of

ROWS = Cuttable(("table", "rows"), "rows", lambda end: f"skip={end}", keep=3)
NOTES = Cuttable(("notes",), "notes", lambda _: "the command prints all", keep=1)


def answer(rows: list, notes: list) -> dict:
    return {"name": "x", "table": {"columns": ["a"], "rows": rows}, "notes": notes}


def test_what_fits_stays_as_it_is():
    given_ = answer([{"a": 1}], ["note"])
    assert fitted(given_, [ROWS, NOTES]) == given_ | {"cut": []}


def test_rows_go_first_and_from_the_end():
    found = fitted(answer([{"a": k} for k in range(100)], ["n" * 50] * 3), [ROWS, NOTES], 800)
    kept = found["table"]["rows"]
    assert kept == [{"a": k} for k in range(len(kept))]
    assert 10 < len(kept) < 100
    assert len(found["notes"]) == 3
    assert found["cut"] == [f"rows: {len(kept)} of 100 are here; skip={len(kept)}"]


def test_long_texts_are_cut_in_the_middle_before_rows_are_lost():
    found = fitted(answer([{"a": "b" * 30_000 + "end"}], []), [ROWS, NOTES])
    (row,) = found["table"]["rows"]
    assert len(row["a"]) == 600
    assert row["a"].endswith("end")
    assert found["cut"] == ["texts longer than 600 characters have … in their middle"]


def test_a_part_says_where_it_lies_in_the_whole():
    part = Cuttable(("rows",), "rows", lambda end: f"skip={end}", first=20, of=50)
    assert fitted({"rows": [1] * 10}, [part])["cut"] == ["rows: 21 to 30 of 50 are here; skip=30"]
    assert fitted({"rows": [1] * 30}, [part])["cut"] == ["rows: 21 to 50 of 50 are here"]
    end = Cuttable(("rows",), "rows", lambda end: f"skip={end}", first=50, of=50)
    assert fitted({"rows": []}, [end])["cut"] == ["rows: none of 50 are here"]


def test_bytes_are_counted_not_characters():
    found = fitted(answer([{"a": "語" * 100}] * 100, []), [ROWS, NOTES])
    assert LIMIT - 1_000 < len(text_of(found).encode()) <= LIMIT


def test_half_a_surrogate_pair_can_be_sent():
    assert text_of(fitted({"path": "a\udcff"}, [])) == '{"path":"a?","cut":[]}'


def test_nan_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        text_of({"a": float("nan")})


TEXTS = st.text(st.characters(), max_size=300).map(lambda text: text * 40)


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdef"), TEXTS | st.floats(allow_nan=False,
             allow_infinity=False) | st.none()), max_size=60),
    st.lists(TEXTS, max_size=30),
)  # fmt: skip
def test_it_is_never_larger_than_the_limit_and_all_cuts_are_told(rows, notes):
    found = fitted(answer(rows, notes), [ROWS, NOTES])
    text = text_of(found)
    assert len(text.encode()) <= LIMIT
    assert size_of(found) == len(text.encode())
    assert json.loads(text)["cut"] == found["cut"]
    told = " ".join(found["cut"])
    assert ("rows: " in told) == (len(found["table"]["rows"]) < len(rows))
    assert ("notes: " in told) == (len(found["notes"]) < len(notes))
