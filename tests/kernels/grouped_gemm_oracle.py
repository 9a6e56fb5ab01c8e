"""The grouped product and its gradients as loops over groups in NumPy float64, and tolerances."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from moeprof.kernels.products.cases import GroupedGemmCase

# Largest error as a share of the largest magnitude, and the signal-to-noise ratio in dB.
# float32: sums of up to 1,100 products round at 2**-24 each, so 1e-5 leaves a factor of ten.
# 16 bit: Primus-Turbo's own bounds (rtol = atol = 1e-2; 45 and 50 dB). One final rounding of
# bfloat16 (8 bits) is worth 2**-9 = 2e-3, of float16 (11 bits) 2**-12.
TOLERANCES = {"float32": (1e-5, 110.0), "bfloat16": (1e-2, 45.0), "float16": (1e-2, 50.0)}


@dataclass(frozen=True)
class Product:
    a: jax.Array
    b: jax.Array
    lens: jax.Array
    d_out: jax.Array


def build(case: GroupedGemmCase, dtype: str, seed: int = 0) -> Product:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), dtype)

    return Product(
        normal(case.rows, case.k),
        normal(case.groups, case.k, case.n),
        jnp.asarray(case.group_lens, jnp.int32),
        normal(case.rows, case.n),
    )


def rows_of(lens: np.ndarray) -> list[slice]:
    ends = np.cumsum(lens)
    return [slice(end - length, end) for length, end in zip(lens, ends, strict=True)]


def expected(product: Product) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The output and both gradients, float64."""
    a, b, d_out = (np.asarray(x, np.float64) for x in (product.a, product.b, product.d_out))
    out, d_a, d_b = np.zeros_like(d_out), np.zeros_like(a), np.zeros_like(b)
    for group, rows in enumerate(rows_of(np.asarray(product.lens))):
        out[rows] = a[rows] @ b[group]
        d_a[rows] = d_out[rows] @ b[group].T
        d_b[group] = a[rows].T @ d_out[rows]
    return out, d_a, d_b


def assert_close(found: jax.Array, wanted: np.ndarray) -> None:
    share, snr_db = TOLERANCES[str(found.dtype)]
    values = np.asarray(found, np.float64)
    assert values.shape == wanted.shape
    scale = max(np.abs(wanted).max(initial=0), 1e-30)
    np.testing.assert_allclose(values, wanted, rtol=share, atol=share * scale)
    noise = np.square(values - wanted).sum()
    if noise > 0:
        assert 10 * np.log10(np.square(wanted).sum() / noise) > snr_db
