"""Ends in an orderly way where JAX announces preemption: SIGTERM in the step that is named.

Arguments: number of the step that is terminated, free port. A line for each step would tell how
soon JAX's listener thread woke up, so none is printed.
"""

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

terminated_in, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
train_step = jax.jit(lambda w: w * 0.99)
w = jnp.ones((64, 64))
print("handler of Python", signal.getsignal(signal.SIGTERM))
for step in range(200):
    w = train_step(w)
    if step == terminated_in:
        os.kill(os.getpid(), signal.SIGTERM)
    if step >= terminated_in:
        time.sleep(0.05)
    if multihost_utils.reached_preemption_sync_point(step):
        print("emergency checkpoint")
        break
else:
    print("trained to the end, nobody told of the preemption")
print("handler of Python", signal.getsignal(signal.SIGTERM))
jax.distributed.shutdown()
sys.exit(85)
