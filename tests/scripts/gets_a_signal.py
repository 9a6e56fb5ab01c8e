"""Sends itself a signal in one of its steps. Arguments: name of the signal, who handles it, step.

Who: "nobody" (the default action), "script" (a handler of Python), "c" (a handler of the C library
that Python does not know), "late" (the same, put in two steps before the signal), "ignored".
"""

import ctypes
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp

number, who, sent_in = getattr(signal, sys.argv[1]), sys.argv[2], int(sys.argv[3])
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal.restype = ctypes.c_void_p
in_c = ctypes.cast(libc.abs, ctypes.c_void_p)  # takes a number and does no harm


def handle(signum, frame):
    print("handled by the script", flush=True)


if who == "script":
    signal.signal(number, handle)
elif who == "ignored":
    signal.signal(number, signal.SIG_IGN)
elif who == "c":
    libc.signal(number, in_c)
train_step = jax.jit(lambda w: w * 0.99)
w = jnp.ones((64, 64))
for step in range(14):
    w = train_step(w)
    print(
        step, signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler), flush=True
    )
    if who == "late" and step == sent_in - 2:
        libc.signal(number, in_c)
    if step == sent_in:
        os.kill(os.getpid(), number)
        time.sleep(0.5)  # as long as a thread may take to see it
if who in ("c", "late"):
    print("still handled in C:", libc.signal(number, None) == in_c.value)
print("trained to the end")
