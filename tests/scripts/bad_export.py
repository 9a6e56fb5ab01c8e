"""Breaks or slows the export of its profile, then trains to the end."""

import signal
import sys
import threading

import jax
import jax.numpy as jnp

from moeprof.recording import export

write_whole = export.write_whole

never = threading.Event()


def fail(path, content):
    raise ValueError("expected one trace file, found 3")


def hang(path, content):
    never.wait()


def terminated(path, content):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    while signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        pass  # until whoever handles the signal has begun
    return write_whole(path, content)


export.write_whole = {"fails": fail, "hangs": hang, "terminated": terminated}[sys.argv[1]]
train_step = jax.jit(lambda w: w * 0.99)
w = jnp.ones((64, 64))
for _ in range(10):
    w = train_step(w)
print("trained to the end")
