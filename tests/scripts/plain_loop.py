"""A jitted training loop without a single annotation."""

import sys

import jax
import jax.numpy as jnp

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10


@jax.jit
def train_step(weights, batch):
    return weights - 0.01 * batch.T @ (batch @ weights)


weights = jnp.ones((64, 64))
for step in range(steps):
    weights = train_step(weights, jnp.full((32, 64), 1.0 + step))
print("steps done:", step + 1, "argv:", sys.argv[1:])
