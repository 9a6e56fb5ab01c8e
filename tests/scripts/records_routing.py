"""Records routing for many more steps than the record keeps."""

import sys

import jax
import jax.numpy as jnp

import moeprof.routing

STEPS = int(sys.argv[1])


@jax.jit
def train_step(x):
    return jnp.sin(x) + 1, jnp.full((1, 4), 2, jnp.int32)


x = jnp.ones(8)
for step in range(STEPS):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        x, tokens_per_expert = train_step(x)
        moeprof.routing.record(step, tokens_per_expert)
