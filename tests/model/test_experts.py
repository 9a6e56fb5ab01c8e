from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moeprof.model.experts import grouped_swiglu, rows_of_experts
from moeprof.model.feedforward import swiglu


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
