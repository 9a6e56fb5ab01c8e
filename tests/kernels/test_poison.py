"""Poison mode: memory that holds nothing is NaN, and no result shows it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels.backends import cpu_library
from moeprof.kernels.products.cases import GROUPED_GEMM_CASES
from moeprof.kernels.products.grouped_product import grouped_gemm
from moeprof.kernels.runtime.poison import poison_mode, poison_rows

from .grouped_gemm_oracle import build

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["ragged_tail", "empty_expert", "all_empty", "many_blocks"])
def test_results_in_poison_mode_are_the_same_bit_for_bit(name, dtype):
    product = build(GROUPED_GEMM_CASES[name], dtype)

    @jax.jit
    def run(a, b):
        out, pull_back = jax.vjp(lambda a, b: grouped_gemm(a, b, product.lens), a, b)
        return out, *pull_back(product.d_out)

    clean = jax.block_until_ready(run(product.a, product.b))
    with poison_mode():
        poisoned = jax.block_until_ready(run(product.a, product.b))
    for found, wanted in zip(poisoned, clean, strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_batches_that_share_an_operand_keep_the_rows_of_the_longest():
    lens = jnp.array([[2, 1], [0, 5]])
    a = jnp.ones((8, 3))
    b = jnp.ones((2, 3, 4))
    batched = jax.vmap(grouped_gemm, in_axes=(None, None, 0))
    with poison_mode():
        out = np.asarray(batched(a, b, lens))
    assert (out != 0).any(axis=2).sum(axis=1).tolist() == [3, 5]
    assert np.isfinite(out).all()


def fail_in_poison_mode() -> None:
    with poison_mode():
        assert cpu_library.load().MoeprofSetPoison(1) == 1
        raise RuntimeError("stop")


@pytest.mark.cpu("the CPU library")
def test_poison_mode_ends_with_its_block_even_after_an_error():
    with pytest.raises(RuntimeError, match="stop"):
        fail_in_poison_mode()
    assert cpu_library.load().MoeprofSetPoison(0) == 0


@pytest.mark.cpu("the CPU library")
def test_the_environment_switches_it_on_for_a_whole_process():
    program = (
        "from moeprof.kernels.backends import cpu_library; "
        "print(cpu_library.load().MoeprofSetPoison(0))"
    )
    environment = {**os.environ, "MOEPROF_POISON": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_used_memory_full_of_nan_before_each_call_does_not_show():
    """Freed buffers of the output's size, filled with NaN, are what the allocator hands out."""
    rows, k, n = 512, 256, 128
    lens = jnp.array([100, 0, 212, 0, 72])
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.standard_normal((rows, k), dtype=np.float32)).at[384:].set(jnp.nan)
    b = jnp.asarray(rng.standard_normal((5, k, n), dtype=np.float32))

    @jax.jit
    def run(a, b):
        out, pull_back = jax.vjp(lambda a, b: grouped_gemm(a, b, lens), a, b)
        return out, *pull_back(jnp.ones_like(out).at[384:].set(jnp.nan))

    first = [np.array(x) for x in run(a, b)]
    for _ in range(20):
        waste = [jnp.full(x.shape, jnp.nan).block_until_ready() for x in first]
        del waste
        for found, wanted in zip(run(a, b), first, strict=True):
            np.testing.assert_array_equal(found, wanted)
    out, d_a, d_b = first
    assert not out[384:].any()
    assert not d_a[384:].any()
    assert np.isfinite(d_b).all()
    assert not d_b[[1, 3]].any()


def test_poison_rows_marks_what_lies_past_the_used_rows():
    floats = poison_rows(jnp.ones((4, 2), jnp.bfloat16), 3)
    assert np.isnan(np.asarray(floats, np.float32)).any(axis=1).tolist() == [False] * 3 + [True]
    assert poison_rows(jnp.arange(3), jnp.array(1)).tolist() == [0, -1, -1]


def test_poison_is_nan_in_every_float_type_and_minus_one_in_integers():
    ones = (ctypes.c_uint32 * 1)(0xFFFFFFFF)
    for dtype in (np.float32, np.float16, jnp.bfloat16):
        assert np.isnan(np.frombuffer(ones, dtype).astype(np.float32)).all()
    assert np.frombuffer(ones, np.int32)[0] == -1
