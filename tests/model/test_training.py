"""Whole steps: the loss falls, the optimizer sees whole gradients, the load report is exact."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moeprof.errors import SpecError
from moeprof.kernels import reset_runtime
from moeprof.model.data import batches
from moeprof.model.layout import build_mesh, put_batch
from moeprof.model.train import (
    OptimizerSettings,
    adamw,
    clip,
    init_state,
    make_job,
    make_step,
    random_weights,
)
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

from . import reference
from .builders import GQA, tiny

pytestmark = pytest.mark.quick

MODEL = tiny(attention=GQA, vocab=256, layers=1, dense_layers=0)
PLAN = ParallelPlan(fsdp=2, expert=4)
SETTINGS = OptimizerSettings(learning_rate=1e-2, bias_speed=0.1)


def start(strategy):
    reset_runtime()
    mesh = build_mesh(PLAN, MODEL)
    job = make_job(MODEL, PLAN, parse_strategy(strategy), mesh)
    state = init_state(job, mesh, settings=SETTINGS)
    batch = put_batch(next(batches(8, 16)), mesh)
    step = make_step(job, mesh, SETTINGS).lower(state, batch).compile()
    return mesh, state, step


@pytest.mark.parametrize(
    "strategy", ["dense-cf1", "sparse-ragged-dot", "sparse-gmm", "sparse-gmm-deepep"]
)
def test_the_loss_falls_on_real_text(strategy):
    mesh, state, step = start(strategy)
    losses = []
    for batch in itertools.islice(batches(8, 16), 30):
        state, report = step(state, put_batch(batch, mesh))
        losses.append(float(report.loss))
    # It starts near ln(256) = 5.5 nats per byte, what a uniform guess costs.
    assert 5.0 < losses[0] < 7.0
    assert np.mean(losses[-5:]) < 4.2
    check_load(strategy, report)
    check_replicas(state)


def check_load(strategy, report):
    """Every token of the last step is counted; receive counts follow from the counts or bound."""
    tokens, received = np.asarray(report.tokens_per_expert), np.asarray(report.received_rows)
    pairs = 8 * 16 * MODEL.top_k
    assert tokens.shape == (1, 8)
    assert received.shape == (1, 2, 4)
    assert tokens.sum() == pairs
    per_rank = tokens.reshape(4, 2).sum(1)
    rows = received.sum(axis=(0, 1))
    if strategy in ("sparse-gmm", "sparse-ragged-dot"):
        np.testing.assert_array_equal(rows, per_rank)
    elif strategy == "sparse-gmm-deepep":
        # A token with both of a rank's experts is one row for two pairs.
        assert np.all(rows <= per_rank)
        assert np.all(rows >= np.ceil(per_rank / 2))
    else:
        assert np.all(rows <= per_rank)  # capacity may drop


def check_replicas(state):
    """Whatever is not split is the same on every device."""
    for leaf in [state.bias, *jax.tree.leaves(state.weights), *jax.tree.leaves(state.optimizer)]:
        by_place: dict[str, np.ndarray] = {}
        for shard in leaf.addressable_shards:
            values = np.asarray(shard.data)
            np.testing.assert_array_equal(by_place.setdefault(str(shard.index), values), values)


def test_a_step_equals_optax_on_one_device():
    mesh, state, step = start("sparse-gmm")
    batch = next(batches(8, 16))
    state, report = step(state, put_batch(batch, mesh))

    weights = random_weights(MODEL, 0)
    bias = np.zeros((1, 8), np.float32)

    @jax.jit
    def one_device(weights):
        (loss, _), gradients = jax.value_and_grad(reference.mean_loss, has_aux=True)(
            weights, bias, batch, MODEL
        )
        optimizer = optax.chain(optax.clip_by_global_norm(SETTINGS.clip_norm), adamw(SETTINGS))
        updates, _ = optimizer.update(gradients, optimizer.init(weights), weights)
        return (
            loss,
            jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients))),
            optax.apply_updates(weights, updates),
        )

    loss, norm, expected = one_device(weights)
    np.testing.assert_allclose(report.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(report.gradient_norm, norm, rtol=1e-5)
    assert norm > SETTINGS.clip_norm  # so clipping took part
    # Adam's first step divides each gradient by its own size, so tiny gradients lose digits.
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=2e-4),
        state.weights,
        expected,
    )
    load = np.asarray(report.tokens_per_expert)
    np.testing.assert_allclose(state.bias, 0.1 * np.sign(load.mean() - load), rtol=1e-6)


def test_clipping_leaves_a_small_gradient_alone():
    gradients = {"a": np.array([3.0, 4.0], np.float32)}
    np.testing.assert_allclose(clip(gradients, np.float32(5), 10.0)["a"], [3, 4])
    np.testing.assert_allclose(clip(gradients, np.float32(5), 1.0)["a"], [0.6, 0.8], rtol=1e-6)


def deepep_on(fsdp, expert):
    plan = ParallelPlan(fsdp=fsdp, expert=expert)
    mesh = build_mesh(plan, MODEL)
    job = make_job(MODEL, plan, parse_strategy("sparse-gmm-deepep"), mesh)
    return mesh, init_state(job, mesh, settings=SETTINGS), make_step(job, mesh, SETTINGS)


def first_loss(mesh, state, step):
    batch = put_batch(next(batches(8, 16)), mesh)
    compiled = step.lower(state, batch).compile()
    return float(compiled(state, batch)[1].loss)


def test_a_process_can_train_on_one_mesh_after_another():
    losses = [first_loss(*deepep_on(fsdp, expert)) for fsdp, expert in [(2, 4), (4, 2), (8, 1)]]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_the_step_of_an_earlier_mesh_asks_to_make_its_job_again():
    earlier = deepep_on(2, 4)
    deepep_on(4, 2)
    with pytest.raises(SpecError, match=r"train step of sparse-gmm-deepep.*make_job again"):
        first_loss(*earlier)
    assert first_loss(*deepep_on(2, 4)) > 0


def test_a_plan_for_other_devices_is_refused_before_a_mesh_is_made():
    with pytest.raises(SpecError, match=r"plan needs 1 × 1 × 4 = 4 devices.*there are 8"):
        build_mesh(ParallelPlan(expert=4), MODEL)
