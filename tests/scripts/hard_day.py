"""Trains fourteen steps on a hard day. Arguments: what happens, in which step (0 for the first)."""

import os
import shutil
import sys

import jax
import jax.numpy as jnp

what, when = sys.argv[1], int(sys.argv[2])


@jax.jit
def train_step(weights):
    return weights * 0.99


@jax.jit
def too_large():
    return jnp.zeros((1 << 46,), jnp.float32)


def out_of_memory(weights):
    return too_large()


def out_of_memory_and_exit(weights):
    try:
        too_large()
    except Exception as error:
        print("no memory:", type(error).__name__)
        sys.exit(3)


def break_compiler():
    """From now on it says that memory is out, on the way that every version of JAX takes to it."""
    from jax._src import compiler

    def compile_nothing(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while compiling")

    for name in ("backend_compile", "backend_compile_and_load"):
        if hasattr(compiler, name):
            setattr(compiler, name, compile_nothing)


def out_of_memory_compiling(weights):
    break_compiler()
    return jax.jit(lambda w: w + 1)(weights)


def out_of_memory_compiling_ahead(weights):
    break_compiler()
    try:
        jax.jit(lambda w: w + 1).lower(weights).compile()
    except Exception as error:
        print("no memory:", type(error).__name__, flush=True)
        os._exit(4)


def nan_raises(weights):
    raise FloatingPointError("loss is not finite")


def nan_exits(weights):
    sys.exit("loss is not finite")


def folder_becomes_a_file(weights):
    folder = os.environ.get("MOEPROF_RUN_DIR", "")
    if folder:
        shutil.rmtree(folder)
        open(folder, "w").close()


def folder_is_removed(weights):
    shutil.rmtree(os.environ.get("MOEPROF_RUN_DIR", ""), ignore_errors=True)


weights = jnp.ones((64, 64))
for step in range(14):
    if step == when and what != "nothing":
        globals()[what](weights)
    weights = train_step(weights)
    print("step", step, flush=True)
print("trained to the end")
