"""A plain trainer that knows nothing of moeprof: weights and batch split over a mesh of two axes.

It keeps an average of its weights beside them, loads batches in a thread, and reads its loss.
"""

import argparse
import functools
import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, required=True)
args = parser.parse_args()
LAYERS, WIDTH, FFN, ROWS = 4, 512, 2048, 128
mesh = Mesh(np.array(jax.devices()).reshape(-1, args.tp), ("fsdp", "tp"))
split = {"up": NamedSharding(mesh, P(None, "fsdp", "tp"))}
split["down"] = NamedSharding(mesh, P(None, "tp", "fsdp"))
batch = NamedSharding(mesh, P("fsdp"))
optimizer = optax.adamw(1e-3)


def init(key):
    up, down = jax.random.split(key)
    shapes = {"up": (up, (LAYERS, WIDTH, FFN)), "down": (down, (LAYERS, FFN, WIDTH))}
    return {name: jax.random.normal(key, shape) * 0.02 for name, (key, shape) in shapes.items()}


def loss_fn(params, x):
    def layer(x, weights):
        hidden = jax.nn.relu(x.astype(jnp.bfloat16) @ weights["up"].astype(jnp.bfloat16))
        return x + (hidden @ weights["down"].astype(jnp.bfloat16)).astype(x.dtype), None

    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x**2)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, opt_state, x):
    loss, slopes = jax.value_and_grad(loss_fn)(params, x)
    updates, opt_state = optimizer.update(slopes, opt_state, params)
    jax.debug.print("loss {}", loss)
    return optax.apply_updates(params, updates), opt_state, loss


evaluate = jax.jit(loss_fn)
ready = queue.Queue(1)


def load():
    data = np.random.default_rng(0)
    while True:
        x = data.standard_normal((ROWS, WIDTH), dtype=np.float32)
        ready.put(jax.make_array_from_callback(x.shape, batch, lambda place: x[place]))  # noqa: B023


params = jax.jit(init, out_shardings=split)(jax.random.key(0))
opt_state = optimizer.init(params)
average = jax.tree.map(jnp.copy, params)
threading.Thread(target=load, daemon=True).start()
for step in range(100):
    x = ready.get()
    params, opt_state, loss = train_step(params, opt_state, x)
    average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, params)
    if step % 5 == 4:
        print(step, float(loss), f"{evaluate(average, x):.3f}", flush=True)
