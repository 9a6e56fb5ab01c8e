"""Sums over ranks, and gradients of both exchanges, native and twin."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from moeprof.kernels import Config, moe_combine, moe_dispatch, setup
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.runtime.poison import poison_mode, poison_rows

from . import moe_numpy
from .devices import devices, ranks
from .moe_cases import (
    HIDDEN,
    ROUTINGS,
    Tokens,
    draw,
    expected_dispatch,
    expected_layer,
    experts_of_all_ranks,
    mesh_of,
    on_ranks,
)

pytestmark = pytest.mark.quick

FEW_ROUTINGS = ["random", "three_ranks", "one_token", "last_rank_gets_all", "nothing_is_sent"]


def combine_on_ranks(tokens: Tokens, rows: np.ndarray) -> np.ndarray:
    def run(rows: jax.Array, *args: jax.Array) -> jax.Array:
        handle = moe_dispatch(*args, tokens.num_experts)[3]
        return moe_combine(rows, handle)

    on = on_ranks(run, mesh_of(tokens.ranks))
    return np.asarray(on(rows, tokens.x, tokens.topk_idx, tokens.topk_weights))


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("routing", FEW_ROUTINGS)
def test_the_sum_is_that_of_the_definition(routing: str):
    tokens = ROUTINGS[routing]()
    setup(mesh=mesh_of(tokens.ranks))
    dispatched = expected_dispatch(tokens)
    rows = np.random.default_rng(3).normal(size=dispatched.recv_x.shape).astype(np.float32)
    found = combine_on_ranks(tokens, rows)
    np.testing.assert_array_equal(found, moe_numpy.combine(rows, dispatched))


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_of_short_floats_are_rounded_once(dtype: str):
    tokens = draw(ranks(8), 16, 8, 16, dtype=dtype)
    setup(mesh=mesh_of(ranks(8)))
    dispatched = expected_dispatch(tokens)
    rows = np.random.default_rng(3).normal(size=dispatched.recv_x.shape)
    rows = np.asarray(jnp.asarray(rows, dtype))
    found = combine_on_ranks(tokens, rows)
    wanted = np.asarray(jnp.asarray(moe_numpy.combine(rows, dispatched), dtype))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize(
    ("routing", "check_vma"), [*((name, False) for name in FEW_ROUTINGS), ("random", True)]
)
def test_gradients_are_those_of_a_layer_without_exchange(routing: str, check_vma: bool):
    tokens = ROUTINGS[routing]()
    mesh = mesh_of(tokens.ranks)
    setup(mesh=mesh)
    layer = on_ranks(experts_of_all_ranks(tokens), mesh, check_vma=check_vma)
    cotangent = np.random.default_rng(4).normal(size=tokens.x.shape).astype(np.float32)

    def loss(x: jax.Array, weights: jax.Array) -> jax.Array:
        return (layer(x, tokens.topk_idx, weights) * cotangent).sum()

    out = np.asarray(layer(tokens.x, tokens.topk_idx, tokens.topk_weights))
    d_x, d_weights = jax.grad(loss, argnums=(0, 1))(tokens.x, tokens.topk_weights)
    used = tokens.topk_idx >= 0
    factor = np.where(used, tokens.topk_weights * (tokens.topk_idx + 1), 0).sum(-1, keepdims=True)
    slope = (cotangent * tokens.x).sum(-1, keepdims=True) * (tokens.topk_idx + 1)
    np.testing.assert_allclose(out, expected_layer(tokens), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(d_x, cotangent * factor, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(d_weights, np.where(used, slope, 0), rtol=2e-5, atol=1e-4)


@pytest.mark.usefixtures("exchange")
def test_a_weight_has_no_gradient_from_ranks_that_do_not_own_its_expert():
    # One token with experts on both ranks: each rank holds one weight and one constant zero.
    mesh = mesh_of(2)
    setup(mesh=mesh)
    idx = np.array([[[0, 3]], [[-1, 2]]], np.int32)
    x, weights = np.ones((2, 1, HIDDEN), np.float32), np.ones((2, 1, 2), np.float32)

    def received(x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        return moe_dispatch(x, idx, weights, 4)[2]

    run = on_ranks(received, mesh)
    d_weights = jax.grad(lambda weights: run(x, idx, weights).sum())(weights)
    assert d_weights.tolist() == [[[1, 1]], [[0, 1]]]


@pytest.mark.usefixtures("exchange")
def test_unused_rows_of_a_cotangent_do_not_reach_a_gradient():
    tokens = draw(ranks(4), 12, 2, 8)
    mesh = mesh_of(ranks(4))
    setup(mesh=mesh)

    def pull_back(x: jax.Array, idx: jax.Array, weights: jax.Array) -> tuple[jax.Array, ...]:
        def forward(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            recv_x, _, recv_weights, _ = moe_dispatch(x, idx, weights, tokens.num_experts)
            return recv_x, recv_weights

        (recv_x, recv_weights), pull = jax.vjp(forward, x, weights)
        used = moe_dispatch(x, idx, weights, tokens.num_experts)[3][0]
        used = used[-1, jax.lax.axis_index("expert")]
        return pull((poison_rows(recv_x, used), poison_rows(recv_weights, used)))

    d_x, d_weights = on_ranks(pull_back, mesh)(tokens.x, tokens.topk_idx, tokens.topk_weights)
    copies = expected_dispatch(tokens).is_token_in_rank.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(d_x, tokens.x * copies, rtol=1e-6)
    wanted = np.where(tokens.topk_idx >= 0, tokens.topk_weights, 0)
    np.testing.assert_allclose(d_weights, wanted, rtol=1e-6)


def test_poisoned_memory_changes_no_gradient():
    tokens = draw(ranks(4), 12, 2, 8)
    mesh = mesh_of(ranks(4))
    setup(mesh=mesh)
    layer = on_ranks(experts_of_all_ranks(tokens), mesh)

    @jax.jit
    def gradients(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda x, w: (layer(x, tokens.topk_idx, w) ** 2).sum(), (0, 1))(x, weights)

    clean = jax.block_until_ready(gradients(tokens.x, tokens.topk_weights))
    for _ in range(20):
        with poison_mode():
            found = jax.block_until_ready(gradients(tokens.x, tokens.topk_weights))
        for a, b in zip(found, clean, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("exchange")
def test_the_backward_of_combine_is_a_cached_dispatch():
    tokens = draw(ranks(4), 12, 2, 8)
    mesh = mesh_of(ranks(4))
    setup(mesh=mesh)

    def pull_back(x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        recv_x, _, _, handle = moe_dispatch(x, idx, weights, tokens.num_experts)
        return jax.vjp(lambda rows: moe_combine(rows, handle), recv_x)[1](x)[0]

    found = on_ranks(pull_back, mesh)(tokens.x, tokens.topk_idx, tokens.topk_weights)
    wanted = moe_numpy.cached_dispatch(tokens.x, expected_dispatch(tokens))
    np.testing.assert_array_equal(found, wanted)


def test_a_handle_that_points_outside_is_refused():
    tokens = draw(2, 6, 2, 4)
    mesh = mesh_of(2)
    setup(mesh=mesh)

    def run(x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        recv_x, _, _, handle = moe_dispatch(x, idx, weights, tokens.num_experts)
        return moe_combine(recv_x, (*handle[:5], handle[5] + 1000))

    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError), match=r"handle: token \d+ lies at row 1\d\d\d"
    ):
        jax.block_until_ready(on_ranks(run, mesh)(tokens.x, tokens.topk_idx, tokens.topk_weights))


@pytest.mark.usefixtures("exchange")
def test_several_groups_exchange_among_themselves_alone():
    # expert x fsdp = 4 x 2: the columns of the mesh are two EP groups of 4 ranks.
    mesh = jax.sharding.Mesh(np.array(devices(8)).reshape(4, 2), ("expert", "fsdp"))
    setup(mesh=mesh)
    tokens = draw(8, 10, 2, 16)
    spec = PartitionSpec(("expert", "fsdp"))
    layer = experts_of_all_ranks(tokens._replace(x=tokens.x[:4]))  # 4 ranks of 4 experts
    run = jax.jit(
        jax.shard_map(
            lambda x, i, w: layer(x[0], i[0], w[0])[None],
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
        )
    )
    found = run(tokens.x, tokens.topk_idx, tokens.topk_weights)
    np.testing.assert_allclose(found, expected_layer(tokens), rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("exchange")
def test_a_mesh_may_order_its_devices_as_it_likes():
    mesh = jax.sharding.Mesh(np.array(devices(8))[[5, 2, 7, 0]], ("expert",))
    setup(mesh=mesh)
    tokens = draw(4, 10, 2, 8)
    found = on_ranks(experts_of_all_ranks(tokens), mesh)(
        tokens.x, tokens.topk_idx, tokens.topk_weights
    )
    np.testing.assert_allclose(found, expected_layer(tokens), rtol=2e-5, atol=2e-5)


def test_a_config_with_other_channels_than_the_dispatch_is_refused():
    setup()
    x, idx = jnp.ones((4, 8)), jnp.zeros((4, 1), jnp.int32)
    recv_x, _, _, handle = jax.eval_shape(
        lambda: moe_dispatch(x, idx, jnp.ones((4, 1)), 8, config=Config(num_sms=24))
    )
    same = jax.eval_shape(lambda x, h: moe_combine(x, h, Config(num_sms=24)), recv_x, handle)
    assert same.shape == (4, 8)
    with pytest.raises(PreflightError, match=r"12 channels \(num_sms=24\).*found 32"):
        jax.eval_shape(lambda x, h: moe_combine(x, h, Config(num_sms=64)), recv_x, handle)


@pytest.mark.usefixtures("exchange")
def test_second_derivatives_are_those_of_a_layer_without_exchange():
    tokens, mesh = draw(ranks(4), 6, 2, 8), mesh_of(ranks(4))
    setup(mesh=mesh)
    layer = on_ranks(experts_of_all_ranks(tokens), mesh)
    factor_of_slot = np.where(tokens.topk_idx >= 0, tokens.topk_idx + 1, 0)

    def plain(x: jax.Array, idx: object, weights: jax.Array) -> jax.Array:
        return x * (weights * factor_of_slot).sum(axis=2, keepdims=True)

    def curvature(run: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        def slope(x: jax.Array, weights: jax.Array) -> jax.Array:
            loss = lambda x, w: jnp.sin(run(x, tokens.topk_idx, w)).sum()  # noqa: E731
            return sum((d**2).sum() for d in jax.grad(loss, (0, 1))(x, weights))

        return jax.jit(jax.grad(slope, (0, 1)))(tokens.x, tokens.topk_weights)

    for found, wanted in zip(curvature(layer), curvature(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2 * np.abs(wanted).max())
