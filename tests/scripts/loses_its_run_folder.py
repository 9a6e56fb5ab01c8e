"""Replaces its run folder by a file before anything is recorded, then trains to the end."""

import os
import shutil

import jax
import jax.numpy as jnp

folder = os.environ["MOEPROF_RUN_DIR"]
shutil.rmtree(folder)
os.mkdir(folder)
for name in ("plugins", "host", "memory"):
    with open(os.path.join(folder, name), "w"):
        pass

train_step = jax.jit(lambda w: w * 0.99)
w = jnp.ones((64, 64))
for _ in range(10):
    w = train_step(w)
print("trained to the end")
