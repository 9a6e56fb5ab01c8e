"""Question: does any result depend on memory that holds nothing?

In poison mode (`poison_mode()`, or ``MOEPROF_POISON=1`` for a whole process)

- grouped_gemm and its gradients compute from copies of their inputs in which unused rows (past the
  sum of the lengths) are NaN, into outputs that are filled with another NaN before, and fail with
  an INTERNAL error where an output element was never written. Results must equal those without
  poison mode, bit for bit: a NaN in them is a row that leaked.
- moe_dispatch, and the gradient of moe_combine, return NaN in unused rows instead of zero (in
  float8_e4m3fn in every second element). What is computed from their used rows must stay the same.
- moe_combine reads no unused row and behaves as ever.

On GPUs the second holds; grouped_gemm computes there as ever. The flag is read when a kernel runs,
not when it is compiled: no program is compiled again. It costs copies and is for tests and hunts.
C++ kernels ask for it through ``native/cpu/common/poison.h`` and
``native/gpu/exchange/unused_rows.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp

from moeprof.kernels.backends import cpu_library, gpu_library


@contextmanager
def poison_mode() -> Iterator[None]:
    """Poison every native kernel that runs in this process meanwhile.

    JAX runs programs asynchronously: wait for results (``jax.block_until_ready``) inside the block.

    Raises:
        NativeError: there is no native library; the slow twins leave no memory unwritten.
    """
    switches = _switches()
    before = [switch(1) for switch in switches]
    try:
        yield
    finally:
        for switch, was_on in zip(switches, before, strict=True):
            switch(was_on)


def _switches() -> list[Callable[[int], int]]:
    """The switch of each library that is here. The GPU library poisons unused rows alone."""
    switches: list[Callable[[int], int]] = []
    if gpu_library.unavailable_reason() is None:
        switches.append(gpu_library.load().MoeprofGpuSetPoison)
    if not switches or cpu_library.unavailable_reason() is None:
        switches.append(cpu_library.load().MoeprofSetPoison)
    return switches


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
