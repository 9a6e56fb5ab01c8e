from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import grouped_gemm
from moeprof.model.layers import grouped_swiglu, rows_of_experts, swiglu

pytestmark = pytest.mark.quick


def test_each_row_gets_its_experts_values():
    # Two rows of expert 0, none of expert 1, one of expert 2, and two rows that hold nothing.
    values = jnp.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    found = rows_of_experts(values, jnp.array([2, 0, 1]), 5)
    np.testing.assert_array_equal(found, [[1, 10], [1, 10], [3, 30], [0, 0], [0, 0]])


def test_biases_of_experts_are_those_of_one_expert_at_a_time():
    shapes = {"gate": (2, 4, 3), "up": (2, 4, 3), "down": (2, 3, 4)}
    shapes |= {"gate_bias": (2, 3), "up_bias": (2, 3), "down_bias": (2, 4)}
    keys = jax.random.split(jax.random.key(0), len(shapes) + 1)
    weights = {
        name: jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys[1:], shapes.items(), strict=True)
    }
    rows = jax.random.normal(keys[0], (5, 4))
    found = grouped_swiglu(rows, weights, jnp.array([3, 2]), jax.lax.ragged_dot)
    expected = [
        swiglu(rows[part], {name: weight[expert] for name, weight in weights.items()})
        for expert, part in enumerate((slice(0, 3), slice(3, 5)))
    ]
    np.testing.assert_allclose(found, jnp.concatenate(expected), rtol=2e-5, atol=1e-5)


def small(seed=0, biases=True):
    """Rows [5, 4], matrices of two experts, and a weight for each row."""
    shapes = {"gate": (2, 4, 3), "up": (2, 4, 3), "down": (2, 3, 4)}
    if biases:
        shapes |= {"gate_bias": (2, 3), "up_bias": (2, 3), "down_bias": (2, 4)}
    keys = jax.random.split(jax.random.key(seed), len(shapes) + 2)
    weights = {
        name: jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys[2:], shapes.items(), strict=True)
    }
    return jax.random.normal(keys[0], (5, 4)), weights, jax.random.uniform(keys[1], (5,))


def test_row_weights_multiply_what_comes_out_and_have_that_gradient():
    rows, weights, row_weights = small()
    lens = jnp.array([3, 1])  # the last row belongs to no expert
    wanted = jax.random.normal(jax.random.key(9), (5, 4))

    def inside(rows, weights, row_weights):
        return jnp.sum(grouped_swiglu(rows, weights, lens, grouped_gemm, row_weights) * wanted)

    def after(rows, weights, row_weights):
        out = grouped_swiglu(rows, weights, lens, grouped_gemm)
        return jnp.sum(out * row_weights[:, None] * wanted)

    found = jax.value_and_grad(inside, argnums=(0, 1, 2))(rows, weights, row_weights)
    expected = jax.value_and_grad(after, argnums=(0, 1, 2))(rows, weights, row_weights)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    jax.tree.map(close, found, expected)


def test_the_down_projection_is_not_made_again_for_the_gradient_of_row_weights():
    """Forward 3, recomputed 2 (gate, up), and one gradient of rows and one of weights for each."""
    rows, weights, row_weights = small(biases=False)

    @jax.checkpoint
    def loss(rows, weights, row_weights):
        return jnp.sum(grouped_swiglu(rows, weights, jnp.array([3, 2]), grouped_gemm, row_weights))

    step = jax.value_and_grad(loss, argnums=(0, 1, 2))
    text = jax.jit(step).lower(rows, weights, row_weights).as_text()
    assert text.count("@moeprof_grouped_gemm(") == 3 + 2 + 3
    assert text.count("@moeprof_grouped_gemm_variable_k(") == 3
