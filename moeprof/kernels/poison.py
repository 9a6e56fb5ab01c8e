"""Question: does any result depend on memory that holds nothing?

In poison mode (`poison_mode()`, or ``MOEPROF_POISON=1`` for a whole process) the native kernels

- compute from copies of their inputs in which unused rows (past the sum of the lengths) are NaN,
- fill their outputs and scratch with NaN before they start, and
- fail with an INTERNAL error if an output element was never written.

So results in poison mode must equal those without it, bit for bit. The flag is read when a kernel
runs, not when it is compiled: no program is compiled again. It costs copies and is for tests and
hunts. C++ kernels ask for it through ``native/cpu/poison.h``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp

from moeprof.kernels import native


@contextmanager
def poison_mode() -> Iterator[None]:
    """Poison every native kernel that runs in this process meanwhile.

    JAX runs programs asynchronously: wait for results (``jax.block_until_ready``) inside the block.

    Raises:
        NativeError: there is no native library; the slow twins leave no memory unwritten.
    """
    switch = native.load().MoeprofSetPoison
    before = switch(1)
    try:
        yield
    finally:
        switch(before)


def poison_rows(values: jax.Array, used_rows: jax.Array | int) -> jax.Array:
    """``values`` with the rows from ``used_rows`` on replaced by NaN (integers: by -1).

    Args:
        values: ``[rows, …]``.
        used_rows: how many rows at the front hold something; may be traced.

    Returns:
        An array of the same shape and dtype.
    """
    poison = jnp.nan if jnp.issubdtype(values.dtype, jnp.floating) else -1
    row = jnp.arange(values.shape[0]).reshape(-1, *[1] * (values.ndim - 1))
    return jnp.where(row < used_rows, values, jnp.asarray(poison).astype(values.dtype))
