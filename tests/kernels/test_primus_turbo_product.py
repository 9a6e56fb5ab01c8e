"""Primus-Turbo's grouped GEMM behind our signature, on a stand-in with its rules."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import reference
from moeprof.kernels.preflight import PreflightError

pytestmark = [pytest.mark.quick, pytest.mark.cpu("a stand-in for another library")]

ADAPTER = "moeprof.kernels.products.primus_turbo"


def check(a: jax.Array, lens: jax.Array, offs: jax.Array) -> None:
    assert lens.dtype == offs.dtype == np.int64
    assert a.dtype in (jnp.bfloat16, jnp.float16)


def with_garbage(rows: jax.Array, lens: jax.Array) -> jax.Array:
    used = jnp.arange(rows.shape[0], dtype=jnp.int32) < lens.astype(jnp.int32).sum()
    return jnp.where(used[:, None], rows, jnp.asarray(jnp.nan, rows.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def stand_in(a, b, lens, offs, trans_a, trans_b, num_cu):
    check(a, lens, offs)
    lens = lens.astype(jnp.int32)
    out = reference.grouped_gemm(a, b, lens, transA=trans_a, transB=trans_b)
    return with_garbage(out, lens)


def forward(a, b, lens, offs, trans_a, trans_b, num_cu):
    return stand_in(a, b, lens, offs, trans_a, trans_b, num_cu), (a, b, lens, offs)


def backward(trans_a, trans_b, num_cu, saved, d_out):
    a, b, lens, offs = saved
    check(d_out, lens, offs)
    lens = lens.astype(jnp.int32)
    gemm = functools.partial(reference.grouped_gemm, transA=trans_a, transB=trans_b)
    d_a, d_b = jax.vjp(lambda a, b: gemm(a, b, lens), a, b)[1](d_out)
    d_a = with_garbage(d_a.T, lens).T if trans_a else with_garbage(d_a, lens)
    return d_a, d_b, None, None


stand_in.defvjp(forward, backward)


@pytest.fixture
def grouped_gemm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., jax.Array]]:
    for name in ("primus_turbo", "primus_turbo.jax", "primus_turbo.jax.lax"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["primus_turbo.jax.lax"].grouped_gemm = stand_in
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    yield importlib.import_module(ADAPTER).grouped_gemm
    sys.modules.pop(ADAPTER, None)


def operands(trans_a: bool, trans_b: bool) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((9, 4)), rng.standard_normal((3, 4, 5))
    a, b = (a.T if trans_a else a), (b.swapaxes(1, 2) if trans_b else b)
    return jnp.asarray(a, jnp.bfloat16), jnp.asarray(b, jnp.bfloat16)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_int32_lengths_are_taken_and_unwritten_rows_are_zero(grouped_gemm, trans_a, trans_b, jit):
    a, b = operands(trans_a, trans_b)
    lens = jnp.array([2, 0, 4], jnp.int32)

    def outcome(gemm, a, b, lens):
        run = lambda a, b: gemm(a, b, lens, None, trans_a, trans_b)  # noqa: E731
        out, pull_back = jax.vjp(run, a, b)
        return out, *pull_back(jnp.ones_like(out))

    found = (jax.jit(outcome, static_argnums=0) if jit else outcome)(grouped_gemm, a, b, lens)
    wanted = outcome(reference.grouped_gemm, a, b, lens)
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(expected, np.float32), rtol=2e-2, atol=2e-2
        )
    out, d_a, _ = found
    assert not np.asarray(out, np.float32)[6:].any()
    assert not np.asarray(d_a.T if trans_a else d_a, np.float32)[6:].any()


def test_offsets_at_hand_are_passed_on(grouped_gemm):
    a, b = operands(False, False)
    out = grouped_gemm(a, b, [2, 0, 4], np.array([0, 2, 2, 6]))
    assert out.shape == (9, 5)


def test_float32_is_refused_with_the_rule(grouped_gemm):
    a, b = operands(False, False)
    with pytest.raises(PreflightError, match=r"takes bfloat16 or float16.*found float32 and float"):
        grouped_gemm(a.astype(jnp.float32), b.astype(jnp.float32), [2, 0, 4])
    with pytest.raises(TypeError, match="the same for a and b, found bfloat16 and float16"):
        grouped_gemm(a, b.astype(jnp.float16), [2, 0, 4])


@pytest.mark.usefixtures("grouped_gemm")
def test_the_gradient_of_matrices_comes_from_the_backward_pass_in_16_bits():
    product = sys.modules[ADAPTER].grouped_gemm_variable_k
    rows, _ = operands(False, False)
    lens = jnp.array([2, 0, 4], jnp.int32)
    found = product(rows, rows, lens)
    wanted = reference.grouped_gemm_variable_k(rows, rows, lens)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(found, np.float32), np.asarray(wanted, np.float32), rtol=2e-2, atol=2e-2
    )
    with pytest.raises(PreflightError, match="writes bfloat16, found preferred_element_type float"):
        product(rows, rows, lens, preferred_element_type=jnp.float32)
