"""What only GPUs show: the compiled call, large products, faults that the device reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch, provider, setup
from moeprof.kernels.products.cases import CASES

from . import moe_numpy
from .devices import ranks
from .grouped_gemm_oracle import assert_close, build, expected
from .moe_cases import CHANNELS, Tokens, mesh_of, on_ranks, round_trip
from .test_rendezvous import JaxError, skip_on

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


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


# Without MOEPROF_STRICT a handler returns before its kernels have run. Each line of a program that
# prints is one finding.
PRODUCTS = """
    import jax, jax.numpy as jnp, numpy as np
    from moeprof.kernels import grouped_gemm
    a, b = jnp.ones((64, 16), jnp.bfloat16), jnp.ones((2, 16, 24), jnp.bfloat16)
    multiply = lambda *lens: np.asarray(grouped_gemm(a, b, jnp.array(lens)), np.float32)
    print(np.isnan(multiply(30, -5)).all())
    try:
        multiply(30, 20)
    except Exception as error:
        print("moeprof_grouped_gemm: group_lens[1] is -5" in str(error))
        print("INVALID_ARGUMENT" in str(error))
    print(multiply(30, 20)[:50].tolist() == [[16.0] * 24] * 50)
"""

# Two ranks where there are two GPUs. The expert id is rank 0's, and so is the record.
EXCHANGES = """
    import jax, numpy as np
    from moeprof.kernels import moe_dispatch, setup
    from tests.kernels.moe_cases import mesh_of, on_ranks
    ranks = min(2, len(jax.devices()))
    mesh = mesh_of(ranks)
    setup(mesh=mesh)
    x, idx = np.ones((ranks, 4, 8), np.float32), np.zeros((ranks, 4, 1), np.int32)
    weights, bad = np.ones((ranks, 4, 1), np.float32), idx.copy()
    bad[0, 1, 0] = 9
    send = on_ranks(lambda *args: moe_dispatch(*args, 2 * ranks)[:2], mesh)
    recv_x, recv_idx = map(np.asarray, send(x, bad, weights))
    print(np.isnan(recv_x).all(), (recv_idx == -1).all())
    try:
        jax.block_until_ready(send(x, idx, weights))
    except Exception as error:
        print("moeprof_moe_dispatch: topk_idx of token 1, slot 0 is 9, outside" in str(error))
    print(np.asarray(send(x, idx, weights)[0])[0, : 4 * ranks].tolist() == [[1.0] * 8] * 4 * ranks)
"""

# One record for all operations: the next exchange hears of a product's lengths.
PRODUCT_THEN_COMBINE = """
    import jax, jax.numpy as jnp, numpy as np
    from moeprof.kernels import grouped_gemm, setup
    from tests.kernels.moe_cases import mesh_of, on_ranks, round_trip
    ranks = min(2, len(jax.devices()))
    mesh = mesh_of(ranks)
    setup(mesh=mesh)
    x, idx = np.ones((ranks, 4, 8), np.float32), np.zeros((ranks, 4, 1), np.int32)
    run = on_ranks(round_trip, mesh)
    print(np.allclose(run(x, idx), x))
    a, b = jnp.ones((64, 16), jnp.bfloat16), jnp.ones((2, 16, 24), jnp.bfloat16)
    print(np.isnan(np.asarray(grouped_gemm(a, b, jnp.array([70, 0])), np.float32)).all())
    try:
        jax.block_until_ready(run(x, idx))
    except Exception as error:
        print("moeprof_grouped_gemm: group_lens[0] is 70: groups 0 to 0 sum to 70" in str(error))
    print(np.allclose(run(x, idx), x))
"""


@pytest.mark.parametrize(
    ("program", "findings"),
    [(PRODUCTS, 4), (EXCHANGES, 4), (PRODUCT_THEN_COMBINE, 4)],
    ids=["products", "exchanges", "product then exchange"],
)
def test_a_fault_leaves_nan_and_is_returned_by_the_next_call_where_handlers_do_not_wait(
    program, findings
):
    environment = {**os.environ, "MOEPROF_STRICT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["True"] * findings, done.stdout + done.stderr
