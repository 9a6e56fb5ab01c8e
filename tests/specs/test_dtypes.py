from __future__ import annotations

import pytest

from moeprof.errors import SpecError
from moeprof.specs.dtypes import DTYPE_BYTES, chosen_dtype


@pytest.mark.parametrize(
    ("asked", "read", "chosen", "sentence"),
    [
        (
            "float32",
            "float16",
            "float32",
            "weights in float32 as asked, not in float16 as the model's file says",
        ),
        (None, "float16", "float16", "weights in float16 as the model's file says"),
        ("float16", "float16", "float16", "weights in float16 as asked"),
        (None, None, "bfloat16", "weights in bfloat16 by default"),
    ],
)
def test_what_is_asked_for_wins_and_is_told(asked, read, chosen, sentence):
    assert chosen_dtype("weights", asked, read, "bfloat16") == (chosen, sentence)


def test_seventy_billion_parameters_at_the_asked_size():
    """70e9 in bfloat16: 140.0 GB, 130.4 GiB; in float32, as asked, twice that."""
    size_bytes = 70_000_000_000 * DTYPE_BYTES[chosen_dtype("weights", None, None, "bfloat16")[0]]
    assert (size_bytes / 1e9, round(size_bytes / 2**30, 1)) == (140.0, 130.4)
    asked, _ = chosen_dtype("weights", "float32", "float16", "bfloat16")
    assert 70_000_000_000 * DTYPE_BYTES[asked] == 2 * size_bytes


def test_an_unknown_dtype_is_refused():
    with pytest.raises(SpecError, match=r"weights: expected one of float32, .*found 'int3'"):
        chosen_dtype("weights", "int3", "float16", "bfloat16")
