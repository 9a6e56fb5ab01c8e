"""Dispatch and combine under vmap, scan, checkpoint and eager execution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from moeprof.kernels import setup

from .devices import devices, ranks
from .moe_cases import Tokens, draw, expected_layer, experts_of_all_ranks, mesh_of, on_ranks

pytestmark = pytest.mark.quick


def batch_of_tokens(batch: int, size: int) -> list[Tokens]:
    return [draw(size, 6, 2, 2 * size, seed=seed) for seed in range(batch)]


def stacked(batch: list[Tokens], axis: int) -> tuple[np.ndarray, ...]:
    """x, topk_idx and topk_weights with the batch as the given axis."""
    return tuple(np.stack(arrays, axis) for arrays in zip(*(b[:3] for b in batch), strict=True))


def assert_close(found: object, wanted: object) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("size", [1, 3])
def test_vmap_inside_a_rank_is_a_loop_over_the_batch(size: int):
    batch, mesh = batch_of_tokens(size, ranks(4)), mesh_of(ranks(4))
    setup(mesh=mesh)
    layer = jax.vmap(experts_of_all_ranks(batch[0]))
    out = on_ranks(layer, mesh)(*stacked(batch, axis=1))
    assert_close(out, np.stack(list(map(expected_layer, batch)), axis=1))


@pytest.mark.usefixtures("exchange")
def test_vmap_leaves_shared_operands_alone():
    batch, mesh = batch_of_tokens(3, ranks(4)), mesh_of(ranks(4))
    setup(mesh=mesh)
    x, idx, _ = batch[0][:3]
    weights = stacked(batch, axis=1)[2]
    layer = jax.vmap(experts_of_all_ranks(batch[0]), in_axes=(None, None, 0))
    out = on_ranks(layer, mesh)(x, idx, weights)
    wanted = [expected_layer(batch[0]._replace(topk_weights=b.topk_weights)) for b in batch]
    assert_close(out, np.stack(wanted, axis=1))


@pytest.mark.usefixtures("exchange")
def test_a_stage_axis_spreads_the_batch_over_devices():
    # As a pipeline does: vmap(spmd_axis_name="stage") of a shard_map over "expert".
    mesh = jax.sharding.Mesh(np.array(devices(8)).reshape(2, 4), ("stage", "expert"))
    setup(mesh=mesh)
    batch, spec = batch_of_tokens(2, 4), PartitionSpec("expert")
    layer = experts_of_all_ranks(batch[0])
    per_stage = jax.shard_map(
        lambda x, i, w: layer(x[0], i[0], w[0])[None],
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    run = jax.jit(jax.vmap(per_stage, spmd_axis_name="stage"))
    assert_close(run(*stacked(batch, axis=0)), np.stack(list(map(expected_layer, batch))))
    loss = jax.jit(jax.grad(lambda x, i, w: run(x, i, w).sum()))
    slope = [expected_layer(b._replace(x=np.ones_like(b.x))) for b in batch]
    assert_close(loss(*stacked(batch, axis=0)), np.stack(slope))


@pytest.mark.usefixtures("exchange")
def test_layers_under_scan_and_checkpoint_have_the_same_gradient():
    tokens, mesh = draw(ranks(4), 6, 2, 8), mesh_of(ranks(4))
    setup(mesh=mesh)
    layer = experts_of_all_ranks(tokens)

    def two_layers(x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        def body(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(layer(scale * x, idx, weights)), None

        return jax.lax.scan(jax.checkpoint(body), x, jnp.array([0.1, 0.2]))[0]

    def without_exchange(x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        factor = jnp.where(idx >= 0, weights * (idx + 1), 0).sum(axis=-1, keepdims=True)
        return jnp.tanh(factor * 0.2 * jnp.tanh(factor * 0.1 * x))

    run = on_ranks(two_layers, mesh)
    found = jax.grad(lambda x, w: run(x, tokens.topk_idx, w).sum(), (0, 1))(
        tokens.x, tokens.topk_weights
    )
    wanted = jax.grad(lambda x, w: without_exchange(x, tokens.topk_idx, w).sum(), (0, 1))(
        tokens.x, tokens.topk_weights
    )
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b)


def test_a_recomputed_layer_exchanges_as_often_as_on_a_gpu():
    # Forward: dispatch, combine. Backward: dispatch again, cached dispatch (of combine), combine
    # (of dispatch). The combine is not recomputed: nobody needs its result.
    tokens, mesh = draw(ranks(4), 6, 2, 8), mesh_of(ranks(4))
    setup(mesh=mesh)
    layer = jax.checkpoint(experts_of_all_ranks(tokens))

    def loss(x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        return (on_ranks(layer, mesh)(x, idx, weights) ** 2).sum()

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 2)))
    text = step.lower(tokens.x, tokens.topk_idx, tokens.topk_weights).compile().as_text()
    calls = {
        name: text.count(f'custom_call_target="moeprof_moe_{name}_inproc"')
        for name in ("dispatch", "cached_dispatch", "combine")
    }
    assert calls == {"dispatch": 2, "cached_dispatch": 1, "combine": 2}


def test_a_shard_map_without_jit_exchanges_too():
    tokens, mesh = draw(2, 6, 2, 4), mesh_of(2)
    setup(mesh=mesh)
    layer, spec = experts_of_all_ranks(tokens), PartitionSpec("expert")
    run = jax.shard_map(
        lambda x, i, w: layer(x[0], i[0], w[0])[None],
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    assert_close(run(*map(jnp.asarray, tokens[:3])), expected_layer(tokens))
