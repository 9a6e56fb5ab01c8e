from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.model.attention import attention, causal_attention, rotate
from moeprof.model.layers import rms_norm
from moeprof.model.train import random_weights

from .builders import GQA, tiny

pytestmark = pytest.mark.quick


def test_the_first_position_reads_only_itself():
    query, key, value = (jax.random.normal(jax.random.key(i), (2, 5, 2, 4)) for i in range(3))
    np.testing.assert_allclose(causal_attention(query, key, value)[:, 0], value[:, 0], rtol=1e-6)


def test_a_later_token_does_not_change_an_earlier_output():
    query, key, value = (jax.random.normal(jax.random.key(i), (1, 5, 2, 4)) for i in range(3))
    before = causal_attention(query, key, value)[:, :4]
    after = causal_attention(query, key.at[:, 4].set(9), value.at[:, 4].set(9))[:, :4]
    np.testing.assert_array_equal(before, after)


def test_grouped_heads_equal_repeated_keys_and_values():
    query = jax.random.normal(jax.random.key(0), (2, 5, 4, 8))
    key, value = (jax.random.normal(jax.random.key(i), (2, 5, 2, 8)) for i in (1, 2))
    repeated = causal_attention(query, jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2))
    np.testing.assert_allclose(causal_attention(query, key, value), repeated, atol=1e-6)


def test_equal_scores_average_the_values_so_far():
    value = jnp.arange(4.0).reshape(1, 4, 1, 1)
    mixed = causal_attention(jnp.zeros((1, 4, 1, 2)), jnp.zeros((1, 4, 1, 2)), value)
    np.testing.assert_allclose(mixed.reshape(-1), [0, 0.5, 1, 1.5], rtol=1e-6)


def test_a_sink_takes_its_share_and_gives_nothing():
    """Scores and sink of 0: position i is one of i + 2 equal shares, so values sum over i + 2."""
    zeros = jnp.zeros((1, 4, 1, 2))
    value = jnp.ones((1, 4, 1, 1))
    mixed = causal_attention(zeros, zeros, value, jnp.zeros(1))
    np.testing.assert_allclose(mixed.reshape(-1), [1 / 2, 2 / 3, 3 / 4, 4 / 5], rtol=1e-6)


def test_a_sink_belongs_to_its_own_query_head():
    """Two query heads share one key; a sink of -30 leaves its head as it was."""
    query = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))
    key, value = (jax.random.normal(jax.random.key(i), (1, 3, 1, 4)) for i in (1, 2))
    plain = causal_attention(query, key, value)
    mixed = causal_attention(query, key, value, jnp.array([-30.0, 30.0]))
    np.testing.assert_allclose(mixed[:, :, 0], plain[:, :, 0], atol=1e-6)
    np.testing.assert_allclose(mixed[:, :, 1], 0, atol=1e-6)


def first_layer(**changes):
    """A model with grouped attention of one layer, and its attention's weights."""
    model = tiny(layers=1, dense_layers=0, attention=GQA, **changes)
    layers = random_weights(model, 0)["moe_layers"]["attention"]
    return model, {name: jnp.asarray(stack[0]) for name, stack in layers.items()}


def test_a_norm_of_queries_and_keys_forgets_their_scale():
    x = jax.random.normal(jax.random.key(0), (1, 5, 32))
    for span in ("head", "all"):
        model, weights = first_layer(qk_norm=span)
        scaled = weights | {name: 7 * weights[name] for name in ("query", "key")}
        np.testing.assert_allclose(
            attention(x, scaled, model), attention(x, weights, model), atol=1e-5
        )


def test_a_norm_of_all_heads_keeps_the_ratio_between_them():
    """Twice the first query head: a norm per head undoes it, one over both heads does not."""
    x = jax.random.normal(jax.random.key(0), (1, 5, 32))
    for span, is_same in (("head", True), ("all", False)):
        model, weights = first_layer(qk_norm=span)
        uneven = weights | {"query": weights["query"].at[:, 0].multiply(2)}
        same = np.allclose(attention(x, uneven, model), attention(x, weights, model), atol=1e-5)
        assert same == is_same


def test_biases_are_added_once():
    x = jnp.zeros((1, 3, 32))
    model, weights = first_layer(attention_bias=True, output_bias=True)
    value = jax.random.normal(jax.random.key(1), weights["value_bias"].shape)
    out = jax.random.normal(jax.random.key(2), weights["out_bias"].shape)
    found = attention(x, weights | {"value_bias": value, "out_bias": out}, model)
    # Every position mixes the same value, which serves both query heads.
    expected = jnp.einsum("nv,nvm->m", jnp.repeat(value, 2, axis=0), weights["out"]) + out
    np.testing.assert_allclose(found, jnp.broadcast_to(expected, found.shape), atol=1e-5)


def test_rotation_turns_the_first_pair_by_one_radian_per_position():
    x = jnp.zeros((1, 3, 1, 4)).at[..., 0].set(1.0)  # pair 0 is features 0 and 2
    turned = rotate(x, theta=10_000.0)[0, :, 0]
    position = np.arange(3)
    np.testing.assert_allclose(turned[:, 0], np.cos(position), atol=1e-6)
    np.testing.assert_allclose(turned[:, 2], np.sin(position), atol=1e-6)


def test_rotated_scores_depend_on_the_distance_alone():
    features = jax.random.normal(jax.random.key(0), (1, 1, 1, 8))
    x = rotate(jnp.broadcast_to(features, (1, 6, 1, 8)), theta=100.0)[0, :, 0]
    scores = x @ x.T
    np.testing.assert_allclose(scores[0, 2], scores[3, 5], rtol=1e-5)


def test_rms_norm_by_hand():
    # Mean of 9 and 16 is 12.5.
    normed = rms_norm(jnp.array([3.0, 4.0]), jnp.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(normed, [3 / 12.5**0.5, 8 / 12.5**0.5], rtol=1e-6)
