"""One process of a job: its rank, how many, port of the coordinator, and what happens to the last.

Each step has a sum over all processes, so that none is far ahead of another.

    compiles_late: another program in its step 2, so that it settles later than the others
    dies: killed in step 7
"""

import inspect
import os
import signal
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

rank, count, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
what = sys.argv[4] if len(sys.argv) > 4 and rank == count - 1 else ""

# how soon a process that died is given up; older versions of JAX cannot be told
limits = {"heartbeat_timeout_seconds": 10, "shutdown_timeout_seconds": 5}
known = inspect.signature(jax.distributed.initialize).parameters
limits = {name: seconds for name, seconds in limits.items() if name in known}
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=rank, **limits)
mesh = Mesh(np.array(jax.devices()), ("data",))
rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
batch = jax.make_array_from_process_local_data(rows, np.ones((8, 64), np.float32))
weights = jax.make_array_from_process_local_data(everywhere, np.ones((64, 64), np.float32))


@jax.jit
def train_step(weights, batch):
    return weights - 1e-6 * batch.T @ (batch @ weights)


for step in range(14):
    weights = train_step(weights, batch)
    weights.block_until_ready()
    if what == "compiles_late" and step == 2:
        jax.jit(lambda x: x + 1)(np.ones(3))
    if what == "dies" and step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
print("rank", jax.process_index(), "of", jax.process_count())
