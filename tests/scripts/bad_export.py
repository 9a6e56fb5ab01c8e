"""Breaks or slows the export of its profile, then trains to the end."""

import sys
import threading

import jax
import jax.numpy as jnp

from moeprof.capture import profiler_session

never = threading.Event()


def fail(path, content):
    raise ValueError("expected one trace file, found 3")


def hang(path, content):
    never.wait()


profiler_session.write_whole = {"fails": fail, "hangs": hang}[sys.argv[1]]
train_step = jax.jit(lambda w: w * 0.99)
w = jnp.ones((64, 64))
for _ in range(10):
    w = train_step(w)
print("trained to the end")
