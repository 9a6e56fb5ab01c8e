from __future__ import annotations

import pytest

from moeprof.errors import SpecError
from moeprof.specs import DTYPE_BYTES, check_dtype


def test_seventy_billion_parameters_in_two_formats():
    """70e9 in bfloat16: 140.0 GB, 130.4 GiB; in float32 twice that."""
    size_bytes = 70_000_000_000 * DTYPE_BYTES["bfloat16"]
    assert (size_bytes / 1e9, round(size_bytes / 2**30, 1)) == (140.0, 130.4)
    assert 70_000_000_000 * DTYPE_BYTES["float32"] == 2 * size_bytes


def test_an_unknown_dtype_is_refused():
    with pytest.raises(SpecError, match=r"weights: expected one of float32, .*found 'int3'"):
        check_dtype("weights", "int3", DTYPE_BYTES)


def test_what_the_bundled_model_cannot_compute_in_is_refused():
    with pytest.raises(SpecError, match=r"found .float8_e4m3fn"):
        check_dtype("compute dtype", "float8_e4m3fn")
