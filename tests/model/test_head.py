"""The head's product whose two gradients are made together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.model.decoder import _project, _project_at_once

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(("formula", "shape"), [("bsm,mv->bsv", (4, 7)), ("bsm,vm->bsv", (7, 4))])
def test_gradients_made_together_are_those_of_the_plain_product(formula, shape):
    keys = jax.random.split(jax.random.key(0), 3)
    x, matrix = jax.random.normal(keys[0], (2, 3, 4)), jax.random.normal(keys[1], shape)
    wanted = jax.random.normal(keys[2], (2, 3, 7))

    def loss(x, matrix, project):
        return jnp.sum(project(x, matrix, formula) * wanted)

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), static_argnums=2)
    jax.tree.map(
        np.testing.assert_array_equal,
        step(x, matrix, _project_at_once),
        step(x, matrix, _project),
    )
    assert "optimization_barrier" in step.lower(x, matrix, _project_at_once).as_text()
    assert "optimization_barrier" not in step.lower(x, matrix, _project).as_text()
