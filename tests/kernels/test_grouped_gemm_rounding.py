"""16-bit values survive the trip through float32, and results are rounded to nearest, ties to even.

Inner lengths of 1 take the scalar path of the conversion, longer ones the vectors.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels.products.grouped_product import grouped_gemm

HALVES = ["bfloat16", "float16"]


def every_value(dtype: str) -> np.ndarray:
    """All finite values that are normal in float32: XLA's threads flush the others to zero."""
    values = np.arange(2**16, dtype=np.uint16).view(jnp.dtype(dtype))
    wide = values.astype(np.float32)
    return values[np.isfinite(wide) & (np.abs(wide) >= np.finfo(np.float32).tiny)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("transA", [False, True])
def test_every_value_times_one_is_itself(dtype, width, transA):
    values = every_value(dtype)
    a = values[None, :] if transA else values[:, None]
    one = jnp.ones((1, 1, width), dtype)
    out = np.asarray(grouped_gemm(a, one, [len(values)], transA=transA))
    np.testing.assert_array_equal(out, np.broadcast_to(values[:, None], out.shape))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [1, 16, 19])
def test_products_are_rounded_to_nearest_even(dtype, width):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4096, 1)).astype(dtype)
    # 1.5 times an odd significand lies midway between two values: a tie.
    b = np.append(rng.standard_normal(width - 1), 1.5).astype(dtype).reshape(1, 1, width)
    out = np.asarray(grouped_gemm(a, b, [4096]))
    exact = a.astype(np.float32) @ b[0].astype(np.float32)  # 22 bits at most: no rounding
    np.testing.assert_array_equal(out, exact.astype(dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [1, 16])
def test_overflow_is_infinity_and_nan_stays_nan(dtype, width):
    largest = float(jnp.finfo(dtype).max)
    a = jnp.array([[largest], [-largest], [jnp.nan], [jnp.inf]], dtype)
    out = np.asarray(grouped_gemm(a, jnp.full((1, 1, width), 2, dtype), [4]), np.float32)
    expected = np.array([[np.inf], [-np.inf], [np.nan], [np.inf]])
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))
