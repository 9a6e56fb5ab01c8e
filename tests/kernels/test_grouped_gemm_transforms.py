"""Grouped GEMM under vmap, shard_map, remat and repeated differentiation."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from jax.test_util import check_grads

from moeprof.kernels.products.grouped_product import grouped_gemm
from moeprof.kernels.reference import grouped_gemm as twin

from .devices import devices

pytestmark = pytest.mark.quick

BATCH, ROWS, K, N, GROUPS = 3, 20, 6, 5, 4
LENS = jnp.array([[5, 0, 9, 6], [1, 1, 1, 1], [0, 0, 0, 0]], jnp.int32)  # sums 20, 4, 0


def operands(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((BATCH, ROWS, K), dtype=np.float32)
    b = rng.standard_normal((BATCH, GROUPS, K, N), dtype=np.float32)
    return jnp.asarray(a), jnp.asarray(b)


AXES = [(0, 0, 0), (0, None, 0), (0, None, None), (None, 0, None), (None, 0, 0), (None, None, 0)]


def chosen(axes: tuple[int | None, ...]) -> list[jax.Array]:
    """Operands of which those that are not mapped have lost their batch axis."""
    return [x if axis == 0 else x[0] for x, axis in zip((*operands(), LENS), axes, strict=True)]


def close(found: object, wanted: object) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), found, wanted)


@pytest.mark.parametrize("axes", AXES)
def test_vmap_is_a_loop_over_the_batch_with_its_own_lengths_and_tails(axes):
    close(
        jax.vmap(grouped_gemm, in_axes=axes)(*chosen(axes)),
        jax.vmap(twin, in_axes=axes)(*chosen(axes)),
    )


@pytest.mark.parametrize("axes", AXES)
def test_gradients_of_vmap_are_those_of_the_twin(axes):
    *floats, lens = chosen(axes)

    def loss(gemm, a, b):
        return jnp.square(jax.vmap(gemm, in_axes=axes)(a, b, lens)).sum()

    close(
        jax.grad(lambda a, b: loss(grouped_gemm, a, b), (0, 1))(*floats),
        jax.grad(lambda a, b: loss(twin, a, b), (0, 1))(*floats),
    )


def test_vmap_along_another_axis_and_of_the_gradient():
    a, b = operands()

    def grads(gemm):
        one = jax.grad(lambda a, b, lens: jnp.square(gemm(a, b, lens)).sum(), (0, 1))
        return jax.vmap(one, in_axes=(1, 3, 0))(jnp.moveaxis(a, 0, 1), jnp.moveaxis(b, 0, 3), LENS)

    close(grads(grouped_gemm), grads(twin))


def test_nested_vmap_shares_what_either_level_does_not_map():
    a, b = operands()
    twice = jnp.stack([a, -a])  # [2, B, rows, k]; b is mapped by the inner level, lengths by none

    def nested(gemm):
        inner = jax.vmap(gemm, in_axes=(0, 0, None))
        return jax.vmap(inner, in_axes=(0, None, None))(twice, b, LENS[0])

    close(nested(grouped_gemm), nested(twin))


def test_vmap_is_one_call_and_does_not_copy_matrices_that_it_does_not_map():
    a, b = operands()
    text = jax.jit(jax.vmap(grouped_gemm, in_axes=(0, None, 0))).lower(a, b[0], LENS).as_text()
    (call,) = re.findall(r"custom_call @moeprof_grouped_gemm\(.*", text)
    assert f"tensor<{BATCH}x{ROWS}x{K}xf32>, tensor<1x{GROUPS}x{K}x{N}xf32>" in call


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_first_and_second_derivatives_agree_with_finite_differences(trans_a, trans_b):
    a, b = operands()
    a, b = a[0], b[0]
    a = a.T if trans_a else a
    b = jnp.swapaxes(b, 1, 2) if trans_b else b
    lens = jnp.array([5, 0, 9, 3])
    check_grads(
        lambda a, b: grouped_gemm(a, b, lens, None, trans_a, trans_b),
        (a, b), order=2, modes=["rev"], rtol=2e-2, atol=2e-2,
    )  # fmt: skip


def test_lengths_have_no_gradient_and_need_no_marking():
    a, b = operands()
    lens = LENS[0]
    _, pull_back = jax.vjp(grouped_gemm, a[0], b[0], lens)
    d_a, d_b, d_lens = pull_back(jnp.ones((ROWS, N)))
    assert d_a.shape == (ROWS, K)
    assert d_b.shape == (GROUPS, K, N)
    assert d_lens.dtype == jax.dtypes.float0


def test_traced_lengths_serve_one_compiled_program():
    a, b = operands()
    compiled = jax.jit(grouped_gemm)
    for lens in LENS:
        close(compiled(a[0], b[0], lens), twin(a[0], b[0], lens))
    assert compiled._cache_size() == 1


def test_remat_and_scan_over_layers():
    a, _ = operands()
    layers = jnp.asarray(np.random.default_rng(1).standard_normal((3, GROUPS, K, K)), jnp.float32)

    def loss(gemm, layers):
        @jax.checkpoint
        def layer(x, b):
            return jnp.tanh(gemm(x, b, LENS[0])), None

        return jax.lax.scan(layer, a[0], layers)[0].sum()

    close(
        jax.jit(jax.grad(lambda x: loss(grouped_gemm, x)))(layers),
        jax.jit(jax.grad(lambda x: loss(twin, x)))(layers),
    )


@pytest.mark.parametrize("check_vma", [False, True])
def test_shard_map_with_matrices_per_device_and_gradients(check_vma):
    mesh = Mesh(np.array(devices(4)), ("expert",))
    rng = np.random.default_rng(2)
    a = jnp.asarray(rng.standard_normal((4 * ROWS, K), dtype=np.float32))
    b = jnp.asarray(rng.standard_normal((8, K, N), dtype=np.float32))  # two groups per device
    lens = jnp.array([9, 11, 0, 0, 20, 0, 1, 2])
    split = PartitionSpec("expert")

    def grads(gemm):
        sharded = jax.shard_map(
            gemm, mesh=mesh, in_specs=(split, split, split), out_specs=split, check_vma=check_vma
        )
        loss = lambda a, b: jnp.square(sharded(a, b, lens)).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(a, b)

    close(grads(grouped_gemm), grads(twin))


@pytest.mark.parametrize("check_vma", [False, True])
def test_shard_map_with_matrices_that_all_devices_share_sums_their_gradient(check_vma):
    mesh = Mesh(np.array(devices(4)), ("data",))
    rng = np.random.default_rng(3)
    a = jnp.asarray(rng.standard_normal((4 * ROWS, K), dtype=np.float32))
    b = jnp.asarray(rng.standard_normal((2, K, N), dtype=np.float32))
    lens = jnp.array([9, 8])
    split, whole = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        grouped_gemm, mesh=mesh, in_specs=(split, whole, whole), out_specs=split,
        check_vma=check_vma,
    )  # fmt: skip
    d_b = jax.jit(jax.grad(lambda b: jnp.square(sharded(a, b, lens)).sum()))(b)
    one_by_one = jax.grad(
        lambda b: sum(jnp.square(twin(part, b, lens)).sum() for part in jnp.split(a, 4))
    )(b)
    close(d_b, one_by_one)


def test_vmap_that_spreads_its_axis_over_devices():
    mesh = Mesh(np.array(devices(4)).reshape(2, 2), ("stage", "expert"))
    rng = np.random.default_rng(4)
    a = jnp.asarray(rng.standard_normal((2, 2 * ROWS, K), dtype=np.float32))
    b = jnp.asarray(rng.standard_normal((2, 4, K, N), dtype=np.float32))
    lens = jnp.array([[9, 8, 20, 0], [1, 2, 3, 4]])
    split = PartitionSpec("expert")

    def stages(gemm):
        one = jax.shard_map(
            gemm, mesh=mesh, in_specs=(split, split, split), out_specs=split, check_vma=False
        )
        all_stages = jax.vmap(one, spmd_axis_name="stage")
        loss = lambda a, b: jnp.square(all_stages(a, b, lens)).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(a, b)

    close(stages(grouped_gemm), stages(twin))


def test_eight_devices_at_once_share_two_cores_without_a_deadlock():
    mesh = Mesh(np.array(devices(8)), ("x",))
    rng = np.random.default_rng(5)
    a = jnp.asarray(rng.standard_normal((8 * 64, 32), dtype=np.float32))
    b = jnp.asarray(rng.standard_normal((8, 32, 32), dtype=np.float32) / 6)
    lens = jnp.array([30, 34] * 8)
    split = PartitionSpec("x")

    @jax.jit
    def many_rounds(a: jax.Array) -> jax.Array:
        one = jax.shard_map(
            lambda a, b, lens: jax.lax.psum(
                grouped_gemm(a, jnp.concatenate([b, -b]), lens), "x"
            ) / 8 + a,
            mesh=mesh, in_specs=(split, split, split), out_specs=split, check_vma=False,
        )  # fmt: skip
        return jax.lax.fori_loop(0, 100, lambda _, x: jnp.tanh(one(x, b, lens)), a)

    assert np.isfinite(np.asarray(many_rounds(a))).all()


@pytest.mark.parametrize("axes", AXES)
def test_a_batch_of_nothing_has_no_results(axes):
    empty = [x[:0] if axis == 0 else x for x, axis in zip(chosen(axes), axes, strict=True)]

    def outcome(a, b, lens):
        out, pull_back = jax.vjp(
            lambda a, b: jax.vmap(grouped_gemm, in_axes=axes)(a, b, lens), a, b
        )
        return out, *pull_back(jnp.ones_like(out))

    out, d_a, d_b = outcome(*empty)
    assert out.shape == (0, ROWS, N)
    assert (d_a.shape, d_b.shape) == (empty[0].shape, empty[1].shape)
    assert not d_a.any()
    assert not d_b.any()


@pytest.mark.parametrize("inner", [(0, None, None), (0, 0, None), (None, 0, None)])
@pytest.mark.parametrize("outer", [(0, None, None), (None, 0, None), (0, 0, 0)])
def test_nested_vmaps_are_nested_loops(inner, outer):
    rng = np.random.default_rng(6)
    sizes = [[size for size, axis in zip((2, 3), pair, strict=True) if axis == 0]
             for pair in zip(outer, inner, strict=True)]  # fmt: skip
    a = jnp.asarray(rng.standard_normal((*sizes[0], ROWS, K)), jnp.float32)
    b = jnp.asarray(rng.standard_normal((*sizes[1], GROUPS, K, N)), jnp.float32)
    lens = jnp.broadcast_to(LENS[0], (*sizes[2], GROUPS))
    both = lambda gemm: jax.vmap(jax.vmap(gemm, inner), outer)(a, b, lens)  # noqa: E731
    close(both(grouped_gemm), both(twin))
