"""The gradient of the matrices as a function of its own, in float32 for 16-bit operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import grouped_gemm, grouped_gemm_variable_k
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.products.cases import GROUPED_GEMM_CASES
from moeprof.kernels.reference import grouped_gemm_variable_k as twin

from .grouped_gemm_oracle import build, expected

pytestmark = pytest.mark.quick

IMPLEMENTATIONS = {"native": grouped_gemm_variable_k, "twin": twin}


@pytest.fixture(params=IMPLEMENTATIONS, name="product")
def _product(request):
    return IMPLEMENTATIONS[request.param]


def test_two_groups_by_hand(product):
    lhs = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [jnp.nan, 7.0]])
    rhs = jnp.array([[1.0], [10.0], [100.0], [8.0]])
    out = product(lhs, rhs, jnp.array([1, 0, 2]))
    # Group 0: row 0. Group 1: nothing. Group 2: 3*10 + 5*100, 4*10 + 6*100. Row 3 is unused.
    assert out.tolist() == [[[1.0], [2.0]], [[0.0], [0.0]], [[530.0], [640.0]]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case_name", ["ragged_tail", "empty_expert", "many_blocks"])
def test_float32_sums_of_16_bit_rows_keep_float32_precision(product, case_name, dtype):
    case = build(GROUPED_GEMM_CASES[case_name], dtype)
    out = jax.jit(lambda a, d: product(a, d, case.lens, preferred_element_type=jnp.float32))(
        case.a, case.d_out
    )
    assert out.dtype == jnp.float32
    wanted = expected(case)[2]
    # Products of 16-bit values are exact in float32; sums of up to 1,050 round at 2**-24 each. A
    # result rounded to 16 bits would be off by 2**-12 of itself or more.
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_it_is_the_gradient_of_grouped_gemm_bit_for_bit():
    case = build(GROUPED_GEMM_CASES["unbalanced_32"], "bfloat16")
    b = jnp.zeros((32, case.a.shape[1], case.d_out.shape[1]), jnp.bfloat16)
    d_b = jax.vjp(lambda b: grouped_gemm(case.a, b, case.lens), b)[1](case.d_out)[0]
    np.testing.assert_array_equal(grouped_gemm_variable_k(case.a, case.d_out, case.lens), d_b)


@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_its_own_gradients_are_those_of_the_twin(dtype):
    case = build(GROUPED_GEMM_CASES["ragged_tail"], "bfloat16")

    def slopes(product):
        loss = lambda a, d: jnp.sin(  # noqa: E731
            product(a, d, case.lens, preferred_element_type=dtype).astype(jnp.float32)
        ).sum()
        return jax.grad(loss, (0, 1))(case.a, case.d_out)

    for found, wanted in zip(slopes(grouped_gemm_variable_k), slopes(twin), strict=True):
        assert found.dtype == jnp.bfloat16
        scale = np.abs(np.asarray(wanted, np.float32)).max()
        np.testing.assert_allclose(
            np.asarray(found, np.float32), np.asarray(wanted, np.float32), atol=2e-2 * scale
        )


def test_vmap_is_a_loop_over_the_batch(product):
    rng = np.random.default_rng(0)
    lhs = jnp.asarray(rng.standard_normal((3, 10, 4)), jnp.bfloat16)
    rhs = jnp.asarray(rng.standard_normal((10, 8)), jnp.bfloat16)
    lens = jnp.array([[4, 6], [0, 3], [10, 0]])

    def one(lhs, lens):
        return product(lhs, rhs, lens, preferred_element_type=jnp.float32)

    together = jax.vmap(one)(lhs, lens)
    for element in range(3):
        alone = one(lhs[element], lens[element])
        np.testing.assert_allclose(together[element], alone, rtol=1e-6, atol=1e-6)


def test_wrong_dtypes_and_shapes_are_named():
    rows, lens = jnp.ones((8, 4), jnp.bfloat16), jnp.array([3, 5])
    with pytest.raises(PreflightError, match="preferred_element_type float32 or bfloat16, found f"):
        grouped_gemm_variable_k(rows, rows, lens, preferred_element_type=jnp.float16)
    with pytest.raises(PreflightError, match="lhs and rhs dtype mismatch: lhs is bfloat16, rhs is"):
        grouped_gemm_variable_k(rows, rows.astype(jnp.float32), lens)
    with pytest.raises(PreflightError, match=r"the same rows, found \(8, 4\) and \(7, 4\)"):
        grouped_gemm_variable_k(rows, rows[:7], lens)
    with pytest.raises(PreflightError, match=r"variable_k: for 2 groups group_offs must have"):
        grouped_gemm_variable_k(rows, rows, lens, [0, 3])
