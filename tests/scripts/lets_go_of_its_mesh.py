"""Trains on a mesh in a function, so that no array is left as the script ends."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

steps, own_profile = int(sys.argv[1]), sys.argv[2:]


def train():
    mesh = jax.make_mesh((2, 2), ("expert", "fsdp"))
    spread = NamedSharding(mesh, PartitionSpec("expert", "fsdp"))
    weights = jax.device_put(jnp.ones((64, 64)), spread)
    train_step = jax.jit(lambda weights: weights - 0.01 * weights * weights)
    for step in range(steps):
        if own_profile and step == 1:
            jax.profiler.start_trace(own_profile[0])
        weights = train_step(weights)
    weights.block_until_ready()


train()
if own_profile:
    jax.profiler.stop_trace()
