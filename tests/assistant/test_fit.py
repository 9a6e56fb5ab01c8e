"""An answer is cut to the limit, whatever it holds, and says what is missing."""

from __future__ import annotations

import json

import pytest
from builders.report_cases import document, hostile_document
from hypothesis import given
from hypothesis import strategies as st

from moeprof.answers.document import Document
from moeprof.assistant.answers import asked, overview
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
    assert text_of(fitted({"path": "a\udcff"}, [])) == '{"path":"a⟨U+DCFF⟩","cut":[]}'


def test_what_is_invisible_in_a_name_is_spelled_out():
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "hi")
    found = fitted({"rows": [{"op": f"fusion.1{hidden}\u202e"}]}, [])
    assert found["rows"] == [{"op": "fusion.1⟨U+E0068⟩⟨U+E0069⟩⟨U+202E⟩"}]


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


class Told:
    """Stands for a run whose document holds more than any real one."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def document(self, *only: str) -> Document:
        return self._document


def swollen(document: Document) -> Document:
    law = document["trust"][0]
    document["trust"] = [
        {**law, "check": f"law{k}", "verdict": "fail", "detail": "d" * 5_000} for k in range(400)
    ]
    document["run"] |= {"path": "p" * 9_000, "notes": ["q" * 3_000] * 100}
    for finding in document["analyses"].values():
        finding["headline"] *= 200
        finding["rows"] *= 200
        finding["notes"] = ["n" * 999] * 300
    return document


@pytest.mark.parametrize("made", [document, hostile_document])
@pytest.mark.parametrize("question", ["", "breakdown", "receive_buffers", "step_time"])
def test_answers_about_the_largest_documents_fit(made, question):
    told = Told(swollen(made()))
    found = asked(told, question, 1_000, 0, []) if question else overview(told)
    assert len(text_of(found).encode()) <= LIMIT
    assert any(line.startswith("trust, laws: ") for line in found["cut"])
    assert found["trust"]["failed_or_warned"]
    assert found["trust"]["worst"] == "fail"
