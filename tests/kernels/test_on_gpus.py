"""What only GPUs show: the compiled call, large products, faults that the device reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch, provider, setup
from moeprof.kernels.cases import CASES
from moeprof.kernels.reference import moe_numpy

from .devices import ranks
from .grouped_gemm_oracle import assert_close, build, expected
from .moe_cases import CHANNELS, Tokens, mesh_of, on_ranks, round_trip
from .test_rendezvous import JaxError, skip_on

pytestmark = pytest.mark.gpu


def test_the_provider_names_the_gpu_library():
    assert provider.describe().name == "native_gpu"


def test_products_and_gradients_compile_to_our_handlers_and_nothing_is_transposed():
    a, b = jnp.ones((64, 16), jnp.bfloat16), jnp.ones((2, 16, 24), jnp.bfloat16)
    loss = lambda a, b: grouped_gemm(a, b, jnp.array([30, 20])).sum()  # noqa: E731
    text = jax.jit(jax.grad(loss, (0, 1))).lower(a, b).compile().as_text()
    assert text.count('custom_call_target="moeprof_grouped_gemm"') == 1  # of a's gradient
    assert text.count('custom_call_target="moeprof_grouped_gemm_variable_k"') == 1
    assert not re.search(r"= \S+ transpose\(", text)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["unbalanced_32", "zipf_64", "empty_expert"])
def test_large_products_and_gradients_are_those_of_a_loop_over_groups(name, dtype):
    product = build(CASES[name].large, dtype)

    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        out, pull_back = jax.vjp(lambda a, b: grouped_gemm(a, b, product.lens), a, b)
        return out, *pull_back(product.d_out)

    for found, wanted in zip(run(product.a, product.b), expected(product), strict=True):
        assert_close(found, wanted)


def test_wide_rows_travel_bit_for_bit_and_their_sums_are_those_of_the_definition():
    size, tokens, hidden, experts = ranks(8), 300, 7168, 64
    rng = np.random.default_rng(0)
    idx = rng.integers(0, experts, (size, tokens, 8), np.int32)
    weights = rng.normal(size=idx.shape).astype(np.float32)
    x = np.asarray(jnp.asarray(rng.normal(size=(size, tokens, hidden)), jnp.bfloat16))
    routed, mesh = Tokens(x, idx, weights, experts), mesh_of(size)
    setup(mesh=mesh)

    def both(x: jax.Array, idx: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        recv_x, _, _, handle = moe_dispatch(x, idx, weights, experts)
        return recv_x, moe_combine(recv_x, handle)

    recv_x, combined = on_ranks(both, mesh)(x, idx, weights)
    wanted = moe_numpy.dispatch(*routed, num_channels=CHANNELS)
    np.testing.assert_array_equal(recv_x, wanted.recv_x)
    sums = moe_numpy.combine(np.asarray(wanted.recv_x, np.float32), wanted)
    np.testing.assert_array_equal(combined, np.asarray(jnp.asarray(sums, jnp.bfloat16)))


def test_a_rank_that_never_comes_is_named_and_the_next_exchange_is_right(monkeypatch):
    monkeypatch.setenv("MOEPROF_EP_TIMEOUT_S", "2")
    mesh = mesh_of(2)
    setup(mesh=mesh)
    x = np.ones((2, 4, 8), np.float32)
    idx = np.zeros((2, 4, 1), np.int32)
    with pytest.raises(
        JaxError,
        match=r"EP rank 1 \(device 1\) did not arrive within 2 s: expected 2 ranks, got 1: 0 \(dev",
    ):
        jax.block_until_ready(on_ranks(skip_on(1), mesh)(x, idx))
    np.testing.assert_allclose(on_ranks(round_trip, mesh)(x, idx), x)


# Without MOEPROF_STRICT the handler returns before its kernels have run.
PROGRAM = """
    import jax, jax.numpy as jnp, numpy as np
    from moeprof.kernels import grouped_gemm
    a, b = jnp.ones((64, 16), jnp.bfloat16), jnp.ones((2, 16, 24), jnp.bfloat16)
    bad = np.asarray(grouped_gemm(a, b, jnp.array([30, -5])), np.float32)
    print(np.isnan(bad).all())
    try:
        jax.block_until_ready(grouped_gemm(a, b, jnp.array([30, 20])))
    except Exception as error:
        print("group_lens[1] is -5" in str(error), "INVALID_ARGUMENT" in str(error))
    print(np.asarray(grouped_gemm(a, b, jnp.array([30, 20])), np.float32)[:50].tolist() ==
          [[16.0] * 24] * 50)
"""


def test_a_fault_leaves_nan_and_is_returned_by_the_next_call_where_handlers_do_not_wait():
    environment = {**os.environ, "MOEPROF_STRICT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True", "True", "True"], done.stderr
