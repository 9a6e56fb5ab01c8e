"""Question: how fast can Pallas' kernels for Hopper compute one pass of a grouped product?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpu.gemm_jax import Operands
from gpu.timing import jax_sample, telling_line

# Tiles of Pallas' kernels: (block_m, block_n, block_k, concurrent steps, grid_block_n).
TILES = ((128, 128, 64, 4, 8), (128, 128, 64, 6, 4))


def pallas_calls(
    which: str, operands: Operands, tiles: tuple[tuple[int, ...], ...] = TILES
) -> list[tuple[str, Callable[[], Any]]]:
    """Pallas' kernel for one pass with each tile size that fits the shape."""
    import jax
    from jax.experimental.pallas.ops.gpu.ragged_dot_mgpu import ragged_dot
    from jax.experimental.pallas.ops.gpu.transposed_ragged_dot_mgpu import transposed_ragged_dot

    a, b, d_out, lens = operands.a, operands.b, operands.d_out, operands.lens
    tiles = tiles[:1] if len(operands.lens) > 64 else tiles  # groups are unrolled: long to compile
    left, right, product, width = {
        "forward": (a, b, ragged_dot, b.shape[2]),
        "dA": (d_out, b, functools.partial(ragged_dot, transpose_rhs=True), b.shape[1]),
        "dB": (a, d_out, transposed_ragged_dot, b.shape[2]),
    }[which]
    calls = []
    for block_m, block_n, block_k, steps, grid_block_n in tiles:
        if width % (block_n * grid_block_n):
            continue
        run = jax.jit(
            functools.partial(
                product,
                block_m=block_m,
                block_n=block_n,
                block_k=block_k,
                max_concurrent_steps=steps,
                grid_block_n=grid_block_n,
            )
        )
        name = f"{block_m}x{block_n}x{block_k}, {steps} steps, grid {grid_block_n}"
        calls.append((name, functools.partial(run, left, right, group_sizes=lens)))
    return calls


def best_pallas(which: str, operands: Operands) -> tuple[str, Callable[[], Any]]:
    """The fastest tile size by two timed calls each.

    Raises:
        RuntimeError: none ran; the message holds the last failure.
    """
    best: tuple[float, str, Callable[[], Any]] | None = None
    failure = "no tile size divides the shape"
    for name, call in pallas_calls(which, operands):
        try:
            sample = jax_sample(call)
            sample(1)
            took_s = sample(2)
        except Exception as error:  # one tile size that fails leaves the others
            failure = telling_line(error)
            continue
        if best is None or took_s < best[0]:
            best = (took_s, name, call)
    if best is None:
        raise RuntimeError(failure)
    return best[1], best[2]
