"""Operands of more than 2**31 elements: offsets do not wrap at 32 bits.

NumPy's zeros are pages that the system lends on first write. JAX borrows the array through DLPack,
so 8 GiB of rows take almost no memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels.products.grouped_product import grouped_gemm

pytestmark = pytest.mark.cpu("memory that the system lends to NumPy")

ROWS, K, N, LAST = 524_296, 4096, 8, 8


def mostly_zeros(last_rows: np.ndarray) -> jax.Array:
    """``[ROWS, K]``, zeros but for the last rows; aligned, else JAX would copy."""
    memory = np.zeros(ROWS * K + 16, np.float32)
    skipped = -memory.ctypes.data % 64 // 4
    rows = memory[skipped : skipped + ROWS * K].reshape(ROWS, K)
    rows[-LAST:] = last_rows
    return jnp.from_dlpack(rows)


def test_the_last_rows_of_two_billion_elements_are_those_of_a_small_product():
    assert ROWS * K > 2**31
    rng = np.random.default_rng(0)
    last_rows = rng.standard_normal((LAST, K), dtype=np.float32)
    b = jnp.asarray(rng.standard_normal((2, K, N), dtype=np.float32))
    out = np.asarray(grouped_gemm(mostly_zeros(last_rows), b, [ROWS - LAST, LAST]))
    np.testing.assert_allclose(out[-LAST:], last_rows @ np.asarray(b[1]), rtol=1e-4, atol=1e-3)
    assert not out[:-LAST].any()
