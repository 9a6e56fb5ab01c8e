"""The table of the exchange kernels alone, from lines of JSON as the program prints them."""

from __future__ import annotations

import json

ROW = {
    "operation": "dispatch",
    "tokens": 4096,
    "hidden": 7168,
    "top_k": 8,
    "experts": 256,
    "blocks": 96,
    "median_us": 180.0,
    "lower_quartile_us": 179.0,
    "upper_quartile_us": 181.0,
    "samples": 60,
    "bytes_per_direction": 58505216,
    "GB_s": 325.0,
}


def test_lines_of_json_are_told_from_others(program):
    native = program("gpu.exchange_native")
    meeting = {"operation": "meeting of two host threads", "mean_us": 9.5, "samples": 500}
    rows = native.rows_of(f"a line\n{json.dumps(meeting)}\n{json.dumps(ROW)}\n")
    assert rows == [meeting, ROW]
    assert native.line(ROW).split() == (
        ["T", "4096", "dispatch", "96", "blocks", "180.0", "us", "325.0", "GB/s"]
    )
    assert "9.5 us" in native.line(meeting)
    assert " - blocks" in native.line({**ROW, "blocks": 0})
