"""The ragged exchange moves what the padded one moves; XLA:CPU lacks the op, so it is acted out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from moeprof.model.layers import Routing
from moeprof.model.layout import BATCH, Job, build_mesh
from moeprof.model.strategies.sorted_experts import announce, run_ragged_dot
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

from .builders import tiny

pytestmark = pytest.mark.quick

MODEL, PLAN = tiny(), ParallelPlan(fsdp=2, expert=4)


def ragged_all_to_all(
    operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name
):
    """`jax.lax.ragged_all_to_all` by its documentation: gather everything, pick the own rows."""
    me = jax.lax.axis_index(axis_name)
    rows, starts, sizes, landings = (
        jax.lax.all_gather(x, axis_name)
        for x in (operand, input_offsets, send_sizes, output_offsets)
    )
    place = jnp.arange(output.shape[0])
    for source in range(rows.shape[0]):
        inside = place - landings[source, me]
        taken = rows[source, jnp.clip(starts[source, me] + inside, 0, rows.shape[1] - 1)]
        is_his = (inside >= 0) & (inside < sizes[source, me])
        output = jnp.where(is_his[:, None], taken, output)
    return output


def run(platform, experts):
    """Output, received rows and gradients of the routed experts alone."""
    mesh = build_mesh(PLAN, MODEL)
    job = Job(MODEL, PLAN, parse_strategy("sparse-ragged-dot"), platform)
    x = jax.random.normal(jax.random.key(0), (8, 4, MODEL.hidden))
    share = jax.random.uniform(jax.random.key(1), experts.shape)
    shapes = {"gate": (8, 32, 16), "up": (8, 32, 16), "down": (8, 16, 32)}
    weights = {n: jax.random.normal(jax.random.key(2), s) for n, s in shapes.items()}

    def device(x, experts, share, weights):
        def loss(x, share, weights):
            routed = run_ragged_dot(x, Routing(experts, share), weights, job)
            return jnp.sum(jnp.sin(routed.out)), routed

        gradients, routed = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(x, share, weights)
        d_x, d_share, d_weights = gradients
        d_weights = jax.lax.psum(d_weights, "fsdp")
        return routed.out, routed.received_rows[None], d_x, d_share, d_weights

    own = PartitionSpec("expert")
    mapped = jax.shard_map(
        device,
        mesh=mesh,
        in_specs=(BATCH, BATCH, BATCH, own),
        out_specs=(BATCH, BATCH, BATCH, BATCH, own),
        check_vma=False,
    )
    return jax.jit(mapped)(x, experts, share, weights)


def test_ragged_and_padded_exchange_agree(monkeypatch):
    random = np.random.default_rng(0)
    experts = np.stack([random.permutation(8)[:3] for _ in range(32)]).astype(np.int32)
    experts[:4] = [0, 1, 2]  # one device sends nothing to ranks 2 and 3
    padded = run("cpu", experts)
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)
    ragged = run("gpu", experts)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ragged, padded
    )
    # Devices are (fsdp, expert) in this order; expert rank r owns experts 2r and 2r + 1.
    by_group = experts.reshape(2, -1)
    wanted = [[np.sum(group // 2 == rank) for rank in range(4)] for group in by_group]
    np.testing.assert_array_equal(padded[1].reshape(2, 4), wanted)


def test_the_padded_exchange_is_announced_once(capsys):
    announce.cache_clear()
    announce()
    announce()
    said = capsys.readouterr().err
    assert said.count("XLA:CPU has no ragged_all_to_all") == 1
    assert all(len(line) <= 80 for line in said.splitlines())
