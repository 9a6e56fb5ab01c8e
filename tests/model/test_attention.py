from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moeprof.model.attention import causal_attention
from moeprof.model.norm import rms_norm
from moeprof.model.rotary import rotate


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
