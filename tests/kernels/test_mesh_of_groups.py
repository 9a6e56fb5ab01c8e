"""The native exchange runs only where the devices of the mesh are the ranks that setup made."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moeprof.kernels import setup
from moeprof.kernels.preflight import PreflightError

from .moe_cases import Tokens, draw, expected_layer, experts_of_all_ranks, on_ranks, round_trip

pytestmark = pytest.mark.cpu("eight virtual devices")


def run_layer(tokens: Tokens, mesh: jax.sharding.Mesh) -> np.ndarray:
    layer, spec = experts_of_all_ranks(tokens), jax.sharding.PartitionSpec("expert")
    run = jax.shard_map(
        lambda x, i, w: layer(x[0], i[0], w[0])[None],
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    return np.asarray(jax.jit(run)(*tokens[:3]))


def mesh_of_order(order: list[int]) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices())[order], ("expert",))


def test_a_mesh_in_another_order_than_the_ranks_is_refused_with_both():
    setup()
    with pytest.raises(
        PreflightError,
        match=r"groups of setup, \[\(0, 1, 2, 3, 4, 5, 6, 7\)\].*"
        r"found \[\(3, 1, 0, 2, 4, 5, 6, 7\)\].*Pass this mesh to setup\(mesh=",
    ):
        run_layer(draw(8, 6, 2, 16), mesh_of_order([3, 1, 0, 2, 4, 5, 6, 7]))


def test_an_expert_axis_shorter_than_the_group_is_refused():
    setup()
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("fsdp", "expert"))
    with pytest.raises(
        PreflightError,
        match=r"found \[\(0, 1, 2, 3\), \(4, 5, 6, 7\)\] on the mesh \{'fsdp': 2, 'expert': 4\}",
    ):
        run_layer(draw(4, 6, 2, 16), mesh)


def test_a_mesh_of_some_of_the_devices_is_refused_instead_of_waiting():
    setup()
    with pytest.raises(PreflightError, match=r"found \[\(0, 1, 2, 3\)\]"):
        run_layer(draw(4, 6, 2, 16), mesh_of_order([0, 1, 2, 3]))


def test_a_mesh_other_than_that_of_setup_is_refused():
    setup(mesh=mesh_of_order([5, 2, 7, 0]))
    with pytest.raises(PreflightError, match=r"\[\(5, 2, 7, 0\)\] in rank order, found \[\(0, 2"):
        run_layer(draw(4, 6, 2, 8), mesh_of_order([0, 2, 5, 7]))


def test_one_group_of_several_may_run_alone():
    setup(mesh=jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("fsdp", "expert")))
    tokens = draw(4, 6, 2, 8)
    found = run_layer(tokens, mesh_of_order([4, 5, 6, 7]))
    np.testing.assert_allclose(found, expected_layer(tokens), rtol=2e-5, atol=2e-5)


def test_without_the_axis_of_setup_all_axes_together_are_the_group():
    setup()
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    tokens = draw(8, 6, 2, 16)
    found = on_ranks(round_trip, mesh)(tokens.x, np.maximum(tokens.topk_idx, 0))
    np.testing.assert_allclose(found, tokens.x, rtol=1e-6)
