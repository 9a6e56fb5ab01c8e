"""A loop that annotates its steps and starts to count at 100."""

import jax
import jax.numpy as jnp

grad = jax.jit(jax.grad(lambda w, x: jnp.sum((x @ w) ** 2)))
update = jax.jit(lambda w, g: w - 1e-6 * g, donate_argnums=0)

weights = jnp.ones((64, 64))
batch = jnp.ones((32, 64))
for step in range(100, 110):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights = update(weights, grad(weights, batch))
print("finished")
