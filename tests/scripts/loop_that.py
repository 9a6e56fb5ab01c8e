"""A loop of twelve calls in whose sixth something happens, named by the first argument."""

import os
import signal
import sys

import jax
import jax.numpy as jnp

what = sys.argv[1]


@jax.jit
def train_step(weights, batch):
    return weights - 0.01 * batch.T @ (batch @ weights)


def check_the_loss(weights):
    raise FloatingPointError("loss is not finite")


def run_out_of_memory(weights):
    jax.jit(lambda: jnp.zeros((1 << 46,), jnp.float32))()


def wait_for_a_signal(weights):
    print("waiting", flush=True)
    signal.pause()


def multiply_wrongly(weights):
    train_step(weights, jnp.ones((3, 3)))


HAPPENS = {
    "raises": check_the_loss,
    "raises_in_jit": multiply_wrongly,
    "exits": lambda weights: sys.exit("no data left"),
    "interrupts": lambda weights: os.kill(os.getpid(), signal.SIGINT),
    "leaves_at_once": lambda weights: os._exit(9),
    "is_killed": lambda weights: os.kill(os.getpid(), signal.SIGKILL),
    "runs_out_of_memory": run_out_of_memory,
    "waits": wait_for_a_signal,
}

weights = jnp.ones((64, 64))
batch = jnp.ones((32, 64))
for step in range(12):
    weights = train_step(weights, batch)
    if step == 5:
        HAPPENS[what](weights)
