"""What each rank receives, native and twin, against the definition over all ranks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch, reset_runtime, setup
from moeprof.kernels.exchange import ops
from moeprof.kernels.runtime.expert_parallel import frozen_state
from moeprof.kernels.runtime.poison import poison_mode

from .devices import ranks
from .moe_cases import (
    HIDDEN,
    ROUTINGS,
    Tokens,
    dispatch_on_ranks,
    draw,
    expected_dispatch,
    mesh_of,
    on_ranks,
)

pytestmark = pytest.mark.quick


def assert_equal_arrays(found: tuple[np.ndarray, ...], wanted: tuple[np.ndarray, ...]) -> None:
    for name, a, b in zip(wanted._fields, found, wanted, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert a.dtype == b.dtype, name


def test_the_native_library_is_what_dispatch_runs_on():
    setup()
    assert ops._runs_native(frozen_state())


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_array_is_that_of_the_definition(routing: str):
    tokens = ROUTINGS[routing]()
    mesh = mesh_of(tokens.ranks)
    setup(mesh=mesh)
    assert_equal_arrays(dispatch_on_ranks(tokens, mesh), expected_dispatch(tokens))


@pytest.mark.usefixtures("exchange")
def test_two_ranks_by_hand():
    # Experts 0, 1 on rank 0 and 2, 3 on rank 1. Rank 0: token 0 -> both ranks, token 1 -> rank 1
    # twice (sent once). Rank 1: token 0 -> rank 0, token 1 -> nowhere.
    idx = np.array([[[0, 3], [2, 3]], [[1, -1], [-1, -1]]], np.int32)
    weights = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]], np.float32)
    x = np.broadcast_to(np.array([[10, 11], [20, 21]], np.float32)[..., None], (2, 2, HIDDEN))
    mesh = mesh_of(2)
    setup(mesh=mesh)
    got = dispatch_on_ranks(Tokens(x, idx, weights, 4), mesh)
    assert got.recv_x[:, :, 0].tolist() == [[10, 20, 0, 0], [10, 11, 0, 0]]
    assert got.recv_topk_idx.tolist() == [
        [[0, -1], [1, -1], [-1, -1], [-1, -1]],
        [[-1, 1], [0, 1], [-1, -1], [-1, -1]],
    ]
    np.testing.assert_array_equal(
        got.recv_topk_weights,
        np.array(
            [[[0.1, 0], [0.5, 0], [0, 0], [0, 0]], [[0, 0.2], [0.3, 0.4], [0, 0], [0, 0]]]
        ).astype(np.float32),
    )
    assert got.rank_prefix_matrix.tolist() == [[[1, 2], [2, 2]]] * 2
    assert got.recv_src_idx.tolist() == [[0, 0, -1, -1], [0, 1, -1, -1]]
    assert got.is_token_in_rank.tolist() == [[[1, 1], [0, 1]], [[1, 0], [0, 0]]]


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rows_keep_their_bits_in_every_dtype(dtype: str):
    tokens = draw(ranks(4), 12, 2, 8, dtype=dtype)
    mesh = mesh_of(ranks(4))
    setup(mesh=mesh)
    found = dispatch_on_ranks(tokens, mesh)
    assert found.recv_x.dtype == tokens.x.dtype
    np.testing.assert_array_equal(found.recv_x, expected_dispatch(tokens).recv_x)


@pytest.mark.usefixtures("exchange")
def test_fp8_rows_travel_with_their_scales():
    tokens, mesh = draw(ranks(4), 12, 2, 8), mesh_of(ranks(4))
    setup(mesh=mesh)
    values = np.random.default_rng(1).normal(size=(tokens.ranks, 12, 256))
    scales = np.random.default_rng(2).random((tokens.ranks, 12, 2)).astype(np.float32)
    fp8 = np.asarray(jnp.asarray(values, jnp.float8_e4m3fn))
    run = on_ranks(lambda x, s, i, w: moe_dispatch((x, s), i, w, 8)[0], mesh)
    recv_x, recv_scales = run(fp8, scales, tokens.topk_idx, tokens.topk_weights)
    by_value = tokens._replace(x=fp8.astype(np.float32))
    assert recv_x.dtype == jnp.float8_e4m3fn
    wanted = expected_dispatch(by_value).recv_x
    np.testing.assert_array_equal(np.asarray(recv_x).astype(np.float32), wanted)
    by_scale = expected_dispatch(tokens._replace(x=scales)).recv_x
    np.testing.assert_array_equal(np.asarray(recv_scales), by_scale)


@st.composite
def any_tokens(draw_from: st.DrawFn) -> Tokens:
    size = draw_from(st.integers(2, ranks(8)))
    experts = size * draw_from(st.integers(1, 3))
    tokens, slots = draw_from(st.integers(1, 40)), draw_from(st.integers(1, 4))
    some = draw(size, tokens, slots, experts, seed=draw_from(st.integers(0, 2**31)))
    popular = draw_from(st.integers(-1, experts - 1))
    share = draw_from(st.sampled_from([0.0, 0.7, 1.0]))
    skewed = np.random.default_rng(tokens).random(some.topk_idx.shape) < share
    return some._replace(topk_idx=np.where(skewed, np.int32(popular), some.topk_idx))


@settings(max_examples=8, deadline=None)
@given(tokens=any_tokens(), runs_native=st.booleans())
def test_any_routing_is_that_of_the_definition(tokens: Tokens, runs_native: bool):
    mesh = mesh_of(tokens.ranks)
    reset_runtime()
    setup(mesh=mesh)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "_runs_native", lambda _: runs_native)
        assert_equal_arrays(dispatch_on_ranks(tokens, mesh), expected_dispatch(tokens))


@pytest.mark.parametrize("tokens_per_rank", [1, 4095, 4096, 65_536])
def test_combine_of_dispatch_is_exact_when_one_expert_gets_all(tokens_per_rank: int):
    mesh = mesh_of(2)
    setup(mesh=mesh)
    x = np.random.default_rng(0).normal(size=(2, tokens_per_rank, HIDDEN)).astype(np.float32)
    idx = np.full((2, tokens_per_rank, 1), 3, np.int32)

    def round_trip(x: jax.Array, idx: jax.Array) -> jax.Array:
        recv_x, _, _, handle = moe_dispatch(x, idx, jnp.ones(idx.shape), 4)
        return moe_combine(recv_x, handle)

    np.testing.assert_array_equal(on_ranks(round_trip, mesh)(x, idx), x)


def test_unused_rows_are_nan_in_poison_mode():
    tokens, mesh = draw(ranks(4), 12, 2, 8), mesh_of(ranks(4))
    setup(mesh=mesh)
    with poison_mode():
        found = dispatch_on_ranks(tokens, mesh)
    wanted = expected_dispatch(tokens)
    for rank in range(tokens.ranks):
        used = wanted.rank_prefix_matrix[rank, -1, rank]
        np.testing.assert_array_equal(found.recv_x[rank, :used], wanted.recv_x[rank, :used])
        assert np.isnan(found.recv_x[rank, used:]).all()
        assert np.isnan(found.recv_topk_weights[rank, used:]).all()
        assert (found.recv_topk_idx[rank, used:] == -1).all()


def test_unused_rows_that_are_nan_never_reach_the_result_of_a_combine():
    tokens, mesh = draw(ranks(4), 12, 2, 8), mesh_of(ranks(4))
    setup(mesh=mesh)

    def both(x: jax.Array, idx: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        recv_x, _, _, handle = moe_dispatch(x, idx, weights, tokens.num_experts)
        return recv_x, moe_combine(recv_x, handle)

    run = on_ranks(both, mesh)
    _, clean = jax.block_until_ready(run(*tokens[:3]))
    with poison_mode():
        recv_x, combined = jax.block_until_ready(run(*tokens[:3]))
    assert np.isnan(recv_x).any()
    np.testing.assert_array_equal(combined, clean)


def test_a_product_over_unused_rows_is_nan_and_not_taken_for_unwritten_output():
    tokens, mesh = draw(2, 12, 2, 8), mesh_of(2)
    setup(mesh=mesh)

    def all_rows(x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        recv_x, _, _, _ = moe_dispatch(x, idx, weights, tokens.num_experts)
        return grouped_gemm(recv_x, jnp.ones((1, HIDDEN, 3)), jnp.array([24], jnp.int32))

    with poison_mode():
        out = np.asarray(on_ranks(all_rows, mesh)(*tokens[:3]))
    wanted = expected_dispatch(tokens)
    for rank in range(2):
        used = wanted.rank_prefix_matrix[rank, -1, rank]
        assert used < 24
        assert np.isfinite(out[rank, :used]).all()
        assert np.isnan(out[rank, used:]).all()


@pytest.mark.parametrize("value", [8, -2])
def test_an_expert_out_of_range_is_named_with_token_and_slot(value: int):
    tokens, mesh = draw(ranks(4), 12, 2, 8), mesh_of(ranks(4))
    setup(mesh=mesh)
    tokens.topk_idx[-1, 5, 1] = value
    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError),
        match=rf"token 5, slot 1 is {value}, outside \[0, 8\)",
    ):
        dispatch_on_ranks(tokens, mesh)
    tokens.topk_idx[-1, 5, 1] = 7  # and the next call finds a clean state
    assert_equal_arrays(dispatch_on_ranks(tokens, mesh), expected_dispatch(tokens))
