"""One of two processes of a distributed run: rank, port of the coordinator."""

import sys

import jax
import jax.numpy as jnp

rank, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=rank)
train_step = jax.jit(lambda w: w * 0.99)
w = jnp.ones((64, 64))
for _ in range(10):
    w = train_step(w)
print("rank", jax.process_index(), "of", jax.process_count())
