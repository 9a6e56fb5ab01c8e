from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moeprof.answers.values import encodable, printable, shortened


def test_an_escape_sequence_is_spelled_out():
    assert printable("a\x1b[31mb") == "a⟨U+001B⟩[31mb"


def test_a_mark_that_reverses_the_direction_is_spelled_out():
    assert printable("a\u202eb") == "a⟨U+202E⟩b"


def test_letters_of_any_script_and_spaces_stay():
    assert printable("größe 専門家 µs\u00a0×") == "größe 専門家 µs\u00a0×"


def test_both_ends_of_a_cut_name_stay():
    assert shortened("abcdefghij.12", 8) == "abcd….12"


def test_a_name_that_fits_is_not_cut():
    assert shortened("abc", 3) == "abc"


@given(st.text(), st.integers(1, 50))
def test_a_shortened_name_never_exceeds_its_width(name, width):
    assert len(shortened(name, width)) <= width


@given(st.text(st.characters()))
def test_any_name_is_printable_and_fits_utf8(name):
    text = encodable(printable(name))
    assert text.encode().decode() == text
    assert not any(ord(c) < 32 for c in text)
