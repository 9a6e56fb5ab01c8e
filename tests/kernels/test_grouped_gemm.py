"""Values and gradients of every implementation, on every named case, in every dtype."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels.backends import cpu_library, gpu_library
from moeprof.kernels.products.cases import GROUPED_GEMM_CASES
from moeprof.kernels.products.grouped_product import grouped_gemm
from moeprof.kernels.reference import grouped_gemm as twin

from .devices import on_gpu
from .grouped_gemm_oracle import Product, assert_close, build, expected

pytestmark = pytest.mark.quick

Gemm = Callable[..., jax.Array]

IMPLEMENTATIONS = {"native": grouped_gemm, "twin": twin}


# The native kernel alone has blocks to cross.
SMALL_CASES = [name for name in GROUPED_GEMM_CASES if name != "many_blocks"]


@pytest.fixture(params=IMPLEMENTATIONS, name="gemm")
def _gemm(request: pytest.FixtureRequest) -> Gemm:
    return IMPLEMENTATIONS[request.param]


@pytest.fixture(params=["float32", "bfloat16", "float16"], name="dtype")
def _dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def with_gradients(gemm: Gemm, product: Product, **layout: bool) -> tuple[jax.Array, ...]:
    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        out, pull_back = jax.vjp(lambda a, b: gemm(a, b, product.lens, **layout), a, b)
        return out, *pull_back(product.d_out)

    return run(product.a, product.b)


def test_the_native_library_is_what_the_public_function_runs_on():
    library = gpu_library if on_gpu() else cpu_library
    assert library.unavailable_reason() is None


@pytest.mark.parametrize("case_name", SMALL_CASES)
def test_values_and_gradients_are_those_of_a_loop_over_groups(gemm, case_name, dtype):
    product = build(GROUPED_GEMM_CASES[case_name], dtype)
    for found, wanted in zip(with_gradients(gemm, product), expected(product), strict=True):
        assert found.dtype == dtype
        assert_close(found, wanted)


@pytest.mark.parametrize("transA", [False, True])
@pytest.mark.parametrize("transB", [False, True])
def test_products_of_many_blocks_are_those_of_a_loop_over_groups(dtype, transA, transB):
    product = build(GROUPED_GEMM_CASES["many_blocks"], dtype)
    turned = Product(
        product.a.T if transA else product.a,
        jnp.swapaxes(product.b, 1, 2) if transB else product.b,
        product.lens,
        product.d_out,
    )
    out, d_a, d_b = with_gradients(grouped_gemm, turned, transA=transA, transB=transB)
    wanted_out, wanted_d_a, wanted_d_b = expected(product)
    assert_close(out, wanted_out)
    assert_close(d_a, wanted_d_a.T if transA else wanted_d_a)
    assert_close(d_b, np.swapaxes(wanted_d_b, 1, 2) if transB else wanted_d_b)


@pytest.mark.parametrize("case_name", ["ragged_tail", "empty_expert"])
def test_transposed_matrices_give_the_same_and_a_transposed_gradient(gemm, case_name, dtype):
    product = build(GROUPED_GEMM_CASES[case_name], dtype)
    turned = Product(product.a, jnp.swapaxes(product.b, 1, 2), product.lens, product.d_out)
    out, d_a, d_b = with_gradients(gemm, turned, transB=True)
    wanted_out, wanted_d_a, wanted_d_b = expected(product)
    assert_close(out, wanted_out)
    assert_close(d_a, wanted_d_a)
    assert_close(d_b, np.swapaxes(wanted_d_b, 1, 2))


@pytest.mark.parametrize("transB", [False, True])
@pytest.mark.parametrize("case_name", ["ragged_tail", "empty_expert"])
def test_transposed_rows_give_the_same_and_a_transposed_gradient(gemm, case_name, dtype, transB):
    product = build(GROUPED_GEMM_CASES[case_name], dtype)
    b = jnp.swapaxes(product.b, 1, 2) if transB else product.b
    turned = Product(product.a.T, b, product.lens, product.d_out)
    out, d_a, d_b = with_gradients(gemm, turned, transA=True, transB=transB)
    wanted_out, wanted_d_a, wanted_d_b = expected(product)
    assert_close(out, wanted_out)
    assert_close(d_a, wanted_d_a.T)
    assert_close(d_b, np.swapaxes(wanted_d_b, 1, 2) if transB else wanted_d_b)


def test_rows_past_the_sum_are_exactly_zero_in_the_output_and_the_gradient(gemm, dtype):
    case = GROUPED_GEMM_CASES["ragged_tail"]
    out, d_a, _ = with_gradients(gemm, build(case, dtype))
    assert case.used_rows < case.rows
    assert not np.asarray(out[case.used_rows :], np.float32).any()
    assert not np.asarray(d_a[case.used_rows :], np.float32).any()


def test_nan_in_unused_rows_reaches_no_result(gemm, dtype):
    case = GROUPED_GEMM_CASES["ragged_tail"]
    clean = build(case, dtype)
    unused = (jnp.arange(case.rows) >= case.used_rows)[:, None]
    dirty = Product(
        jnp.where(unused, jnp.nan, clean.a).astype(dtype),
        clean.b,
        clean.lens,
        jnp.where(unused, jnp.nan, clean.d_out).astype(dtype),
    )
    for found, wanted in zip(with_gradients(gemm, dirty), with_gradients(gemm, clean), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_nan_in_one_groups_rows_stays_in_that_group(gemm):
    product = build(GROUPED_GEMM_CASES["ragged_tail"], "float32")  # lengths 13, 7, 61, 5
    dirty = Product(product.a.at[14].set(jnp.nan), product.b, product.lens, product.d_out)
    out, d_a, d_b = with_gradients(gemm, dirty)
    assert np.isnan(np.asarray(out)).any(axis=1).nonzero()[0].tolist() == [14]
    assert np.isfinite(np.asarray(d_a)).all()
    assert np.isnan(np.asarray(d_b)).any(axis=(1, 2)).tolist() == [False, True, False, False]


def test_the_gradient_of_an_empty_groups_matrix_is_zero_bit_for_bit(gemm, dtype):
    case = GROUPED_GEMM_CASES["empty_expert"]
    _, _, d_b = with_gradients(gemm, build(case, dtype))
    empty = [group for group, length in enumerate(case.group_lens) if length == 0]
    assert len(empty) == 6
    assert not np.asarray(d_b)[np.array(empty)].view(np.uint8).any()


def test_two_groups_by_hand(gemm):
    a = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    b = jnp.array([[[1.0], [1.0]], [[10.0], [0.0]]])
    out = gemm(a, b, jnp.array([1, 2]))
    assert out.tolist() == [[3.0], [30.0], [50.0]]  # 1+2, 10*3, 10*5
