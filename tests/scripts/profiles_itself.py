"""Takes a profile of its own, in the way that its second argument names, into the first."""

import sys

import jax
import jax.numpy as jnp

folder, way = sys.argv[1:]
train_step = jax.jit(lambda w, x: w - 0.01 * x.T @ (x @ w))
w, x = jnp.ones((64, 64)), jnp.ones((32, 64))
for step in range(12):
    if (step, way) in ((5, "start_trace"), (1, "early")):
        jax.profiler.start_trace(folder)
    w = train_step(w, x)
    if step == 7 and way != "trace":
        w.block_until_ready()
        jax.profiler.stop_trace()
if way == "trace":
    with jax.profiler.trace(folder):
        train_step(w, x).block_until_ready()
print("finished")
