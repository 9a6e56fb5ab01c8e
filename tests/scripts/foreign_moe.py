"""Trains an MoE that knows nothing of moeprof, and prints what its routers chose in each step.

Arguments: how many steps; then ``vocabulary`` for a model without experts, or rank and port of one
of two processes.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

STEPS = int(sys.argv[1])
IS_DENSE = sys.argv[2:] == ["vocabulary"]
if len(sys.argv) == 4:
    jax.distributed.initialize(
        f"localhost:{sys.argv[3]}", num_processes=2, process_id=int(sys.argv[2])
    )
EXPERTS, TOKENS, WIDTH, LAYERS = 4, 16, 8, 2


def layer(x, weights):
    if IS_DENSE:
        return x + jnp.tanh(x @ weights["router"]) @ weights["router"].T, None
    best, chosen = jax.lax.top_k(jax.nn.softmax(x @ weights["router"]), 2)
    mask = (jax.nn.one_hot(chosen, EXPERTS) * best[..., None]).sum(1)
    rows = jax.nn.relu(jnp.einsum("te,td,edf->etf", mask, x, weights["up"]))
    return x + jnp.einsum("etf,efd->td", rows, weights["down"]), chosen


def loss(weights, x):
    x, chosen = jax.lax.scan(layer, x @ weights["embed"], weights["layers"])
    return (x**2).mean(), chosen


def update(weights, x):
    (value, chosen), slopes = jax.value_and_grad(loss, has_aux=True)(weights, x)
    return jax.tree.map(lambda a, b: a - 0.1 * b, weights, slopes), value, chosen


def normal(seed, *shape):
    return np.asarray(jax.random.normal(jax.random.key(seed), shape)) * 0.3


mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows, same = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
weights = {
    "embed": normal(0, WIDTH, WIDTH),
    "layers": {
        "router": normal(1, LAYERS, WIDTH, EXPERTS),
        "up": normal(2, LAYERS, EXPERTS, WIDTH, 4),
        "down": normal(3, LAYERS, EXPERTS, 4, WIDTH),
    },
}
weights = jax.tree.map(
    lambda value: jax.make_array_from_callback(value.shape, same, lambda at: value[at]), weights
)
train_step = jax.jit(update, donate_argnums=0)
for step in range(STEPS):
    batch = normal(10 + step, TOKENS, WIDTH)
    x = jax.make_array_from_callback(batch.shape, rows, lambda at, batch=batch: batch[at])
    weights, value, chosen = train_step(weights, x)
    line = f"step {step} loss {float(value):.9f}"
    if not IS_DENSE:
        own = [np.asarray(s.data) for s in chosen.addressable_shards if s.replica_id == 0]
        counts = sum(
            np.stack([np.bincount(row.reshape(-1), minlength=EXPERTS) for row in part])
            for part in own
        )
        line += f" chose {counts.tolist()}"
    print(line, flush=True)
