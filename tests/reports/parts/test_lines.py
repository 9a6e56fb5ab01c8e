"""Texts in the lines of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.reports.parts.terminal import wrapped


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("waits for 60.7 %.", 15, ["waits for", "60.7 %."]),
        ("it takes 1.113 ms per step", 16, ["it takes", "1.113 ms per", "step"]),
        ("8 × 4 ranks", 6, ["8 × 4", "ranks"]),
        ("rate 31.83 GB/s at 4 B", 14, ["rate", "31.83 GB/s at", "4 B"]),
        ("is 3 bytes", 5, ["is 3", "bytes"]),  # a word, no unit
        ("use sparse-gmm here", 12, ["use", "sparse-gmm", "here"]),
        ("", 10, [""]),
    ],
)
def test_a_line_never_ends_between_a_figure_and_its_unit(text, width, lines):
    assert wrapped(text, width) == lines


def test_lines_below_the_first_are_indented():
    assert wrapped("one two three", 9, first=" - ", indent="   ") == [
        " - one",
        "   two",
        "   three",
    ]


@given(st.text(alphabet="ab 1%-ms", max_size=60), st.integers(4, 30))
def test_no_line_is_wider_and_no_word_is_lost(text, width):
    lines = wrapped(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
