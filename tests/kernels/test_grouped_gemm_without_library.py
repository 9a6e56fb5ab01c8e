"""Without the native library the slow twin takes its place, and that is said once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu("the CPU library")

PROGRAM = """
import warnings, jax, jax.numpy as jnp
from moeprof.kernels.products.grouped_product import grouped_gemm
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for rows in (3, 4):
        out = jax.jit(jax.vmap(grouped_gemm, in_axes=(0, None, None)))(
            jnp.ones((2, rows, 2)), jnp.ones((2, 2, 1)), jnp.array([1, 1]))
print(out[:, :, 0].tolist())
print(len([w for w in caught if issubclass(w.category, RuntimeWarning)]), caught[0].message)
"""


def test_the_twin_computes_and_one_warning_gives_the_reason(tmp_path):
    missing = tmp_path / "libmoeprof_cpu.so"
    environment = {**os.environ, "MOEPROF_NATIVE_LIBRARY": str(missing)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    values, warning = done.stdout.splitlines()
    assert values == "[[2.0, 2.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]]"
    assert warning.startswith("1 moeprof.kernels runs its slow twins: native library: expected")
    assert str(missing) in warning
