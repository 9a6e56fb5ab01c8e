"""Chooses its devices itself, before it imports JAX, and lays its arrays on a mesh."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("expert", "fsdp"))
optimizer = optax.adamw(1e-3)
weights = jax.device_put(jnp.ones((8, 64, 64)), NamedSharding(mesh, PartitionSpec("expert")))
state = optimizer.init(weights)


def loss_of(weights, batch):
    return jnp.mean((batch @ weights) ** 2)


@jax.jit
def evaluate(weights, batch):
    return loss_of(weights, batch)


def make_step():
    def train_step(weights, state, batch):
        loss, grads = jax.value_and_grad(loss_of)(weights, batch)
        updates, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    return jax.jit(train_step, donate_argnums=(0, 1))


step_function = make_step()
batch = jnp.ones((8, 16, 64))
for _ in range(8):
    weights, state, loss = step_function(weights, state, batch)
    evaluate(weights, batch)
    evaluate(weights, 2 * batch)
print(len(jax.devices()), "devices, loss", float(loss) < 64**2)
