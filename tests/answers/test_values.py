from __future__ import annotations

import pytest

from moeprof.answers.values import cell_text, heading, written


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ns", "not known"),
        (True, "", "yes"),
        (False, "", "no"),
        (1_500_000, "ns", "1.500 ms"),
        (3 * 2**30, "bytes", "3.000 GiB"),
        (0.184, "share", "18.4 %"),
        (12345, "count", "12,345"),
        (12345, "", "12345"),
        (0.25, "ratio", "0.25"),
        (1234.5, "tokens/s", "1234 tokens/s"),
        (123456.7, "tokens/s", "123,457 tokens/s"),
        (4.12e14, "FLOP/s", "4.120e+14 FLOP/s"),
        (0.003106, "TFLOP/s", "3.106 GFLOP/s"),
        (0.1277, "GB/s", "0.1277 GB/s"),
        (0.005941, "GB/s", "5.941 MB/s"),
        (0.00002, "GB/s", "20 kB/s"),
        (0.0, "TB/s", "0 TB/s"),
        (999_999, "ns", "1.000 ms"),
        (-999_999, "ns", "-1.000 ms"),
        (999_949, "ns", "999.9 µs"),
        (999.6, "ns", "1.000 µs"),
        (99_996, "ns", "100.0 µs"),
        (2**20 - 1, "bytes", "1.000 MiB"),
        (1023.2 * 2**10, "bytes", "1,023 KiB"),
        (999_999_999, "FLOP", "1.000 GFLOP"),
        ("a\x1bb", "", "a⟨U+001B⟩b"),
    ],
)
def test_a_value_is_written_with_its_unit(value, unit, text):
    assert written(value, unit) == text


def test_a_cell_leaves_to_the_heading_what_that_says():
    assert cell_text(2048, "worst_rows", "rows") == "2,048"
    assert cell_text(2048, "width", "elements") == "2048 elements"
    assert cell_text(1500, "per_step_ns", "ns") == "1.500 µs"
    assert cell_text(None, "used_rows", "rows") == "not known"


def test_a_heading_leaves_the_unit_to_the_cells():
    assert heading("per_step_ns", "ns") == "per step"
    assert heading("worst_bytes", "bytes") == "worst"
    assert heading("worst_rows", "rows") == "worst rows"
    assert heading("load_factor", "") == "load factor"


def test_a_share_is_a_percentage_whatever_its_column_is_called():
    assert cell_text(0.6, "busy_share", "share") == "60.0 %"
    assert cell_text(0.6, "load_ratio", "ratio") == "0.6"
