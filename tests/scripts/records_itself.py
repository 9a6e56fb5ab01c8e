"""Records itself from Python, with a function that was compiled before."""

import sys

import jax
import jax.numpy as jnp

import moeprof


@jax.jit
def train_step(weights, batch):
    return weights - 0.01 * batch.T @ (batch @ weights)


weights, batch = jnp.ones((64, 64)), jnp.ones((32, 64))
with moeprof.capture(sys.argv[1], steps=3) as recording:
    for _ in range(12):
        weights = train_step(weights, batch)
print("finished, recorded:", recording.path is not None)
