"""How much memory would this training step take of each of N GPUs? No GPU is needed to ask.

    python examples/plan_memory.py [h100_sxm] [devices]

`build` is called in another process with the devices to plan for. It returns the step and its
arguments as shapes with shardings: nothing is allocated, however large the model.
"""

from __future__ import annotations

import sys

from moeprof.projector.compiled.plan import plan
from moeprof.units import format_bytes


def build(devices, *, layers, width, tokens):
    """A stack of layers under SGD, its weights split over all devices (FSDP)."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices), ("fsdp",))

    def shape(dims, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=sharding)

    def loss(weights, x):
        def layer(x, weight):
            return jax.nn.gelu(x @ weight), None

        x, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    @jax.jit
    def step(weights, x):
        return weights - 1e-3 * jax.grad(loss)(weights, x)

    weights = shape((layers, width, width), None, "fsdp")
    return step, (weights, shape((tokens * len(devices), width), "fsdp"))


if __name__ == "__main__":
    hardware = sys.argv[1] if len(sys.argv) > 1 else "h100_sxm"
    devices = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    options = {"layers": 16, "width": 4096, "tokens": 4096}
    found = plan(build, hardware, devices, options=options)
    print(f"arguments {format_bytes(found.memory.argument_bytes)}")
    print(f"arena     {format_bytes(found.memory.temp_bytes)}")
    for row in found.by("content", "component").head(8).to_dict("records"):
        print(f"  {format_bytes(row['bytes']):>10}  {row['content']}, {row['component']}")
