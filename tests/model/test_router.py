from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.model.layers import balance_bias, choose, count_tokens

pytestmark = pytest.mark.quick


def test_the_bias_changes_the_choice_but_not_the_weights():
    affinity = jnp.array([[0.9, 0.6, 0.3, 0.1]])
    bias = jnp.array([-0.7, 0.0, 0.0, 0.6])
    # Biased 0.2, 0.6, 0.3, 0.7: experts 3 and 1 win with affinities 0.1 and 0.6, sum 0.7.
    routing = choose(affinity, bias, top_k=2, routed_scale=2.5)
    np.testing.assert_array_equal(routing.experts, [[3, 1]])
    np.testing.assert_allclose(routing.weights, [[2.5 * 0.1 / 0.7, 2.5 * 0.6 / 0.7]], rtol=1e-6)


def test_without_bias_the_largest_affinities_win():
    routing = choose(jnp.array([[0.2, 0.8, 0.4]]), jnp.zeros(3), top_k=2, routed_scale=1.0)
    np.testing.assert_array_equal(routing.experts, [[1, 2]])
    np.testing.assert_allclose(routing.weights, [[2 / 3, 1 / 3]], rtol=1e-6)


def test_weights_have_the_gradient_of_the_gathered_form():
    affinity = jax.nn.sigmoid(jax.random.normal(jax.random.key(0), (5, 6)))
    wanted = jax.random.normal(jax.random.key(1), (5, 3))

    def ours(affinity):
        return jnp.sum(choose(affinity, jnp.zeros(6), 3, 2.5).weights * wanted)

    def gathered(affinity):
        values, _ = jax.lax.top_k(affinity, 3)
        return jnp.sum(2.5 * values / values.sum(-1, keepdims=True) * wanted)

    np.testing.assert_allclose(jax.grad(ours)(affinity), jax.grad(gathered)(affinity), atol=1e-6)


def test_a_chosen_bias_gets_no_gradient():
    affinity = jnp.array([[0.2, 0.8, 0.4]])
    gradient = jax.grad(lambda bias: choose(affinity, bias, 2, 1.0).weights[0, 0])(jnp.zeros(3))
    np.testing.assert_array_equal(gradient, 0)


def test_bias_rises_where_load_is_below_the_mean_and_falls_above():
    # Mean load 4: below, above, at the mean.
    bias = balance_bias(jnp.zeros((1, 3)), jnp.array([[1, 7, 4]]), speed=0.001)
    np.testing.assert_allclose(bias, [[0.001, -0.001, 0.0]])


def test_each_layer_is_balanced_by_its_own_mean():
    bias = balance_bias(jnp.zeros((2, 2)), jnp.array([[1, 3], [100, 50]]), speed=1.0)
    np.testing.assert_array_equal(bias, [[1, -1], [-1, 1]])


def test_ids_outside_the_experts_count_nowhere():
    counts = count_tokens(jnp.array([[0, 2], [2, 4], [-1, 2]]), 4)
    np.testing.assert_array_equal(counts, [1, 0, 3, 0])


def test_counts_agree_with_bincount():
    ids = np.random.default_rng(0).integers(0, 7, (40, 3)).astype(np.int32)
    found = count_tokens(jnp.asarray(ids), 7)
    np.testing.assert_array_equal(found, np.bincount(ids.reshape(-1), minlength=7))
