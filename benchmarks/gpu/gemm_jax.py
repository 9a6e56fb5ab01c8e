"""Question: how does JAX compute the three passes of a grouped product, and are ours right?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.gemm_shapes import PASSES, Shape

# Lines of a result that are compared with the host's.
CHECKED = 512


class Operands:
    """a [M, k], b [G, k, n], d_out [M, n] and lengths, on the first device, random and normal."""

    def __init__(self, shape: Shape) -> None:
        """Draws on the device, from three keys of seed 0."""
        import jax
        import jax.numpy as jnp

        keys = jax.random.split(jax.random.key(0, impl="unsafe_rbg"), 3)
        sizes = ((shape.rows, shape.k), (shape.groups, shape.k, shape.n), (shape.rows, shape.n))
        draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
        self.a, self.b, self.d_out = (
            draw(key, size, jnp.bfloat16) for key, size in zip(keys, sizes, strict=True)
        )
        self.lens = jnp.asarray(shape.group_lens, jnp.int32)


def calls_of(product: Callable[..., Any], operands: Operands) -> dict[str, Callable[[], Any]]:
    """One compiled call per pass of a differentiable ``product(a, b, lens)``.

    A gradient's program holds that gradient alone: what it does not use is never computed.
    """
    import jax

    a, b, d_out, lens = operands.a, operands.b, operands.d_out, operands.lens
    forward = jax.jit(product)

    @jax.jit
    def d_a(a: Any, b: Any, d_out: Any, lens: Any) -> Any:
        return jax.vjp(lambda a: product(a, b, lens), a)[1](d_out)

    @jax.jit
    def d_b(a: Any, b: Any, d_out: Any, lens: Any) -> Any:
        return jax.vjp(lambda b: product(a, b, lens), b)[1](d_out)

    return {
        "forward": lambda: forward(a, b, lens),
        "dA": lambda: d_a(a, b, d_out, lens),
        "dB": lambda: d_b(a, b, d_out, lens),
    }


def dense_calls(operands: Operands) -> dict[str, Callable[[], Any]]:
    """The same passes with one matrix for all rows, the first group's."""
    import jax
    import jax.numpy as jnp

    a, b, d_out = operands.a, operands.b[0], operands.d_out
    forward = jax.jit(lambda a, b: a @ b)
    d_a = jax.jit(lambda d, b: jnp.einsum("mn,kn->mk", d, b))
    d_b = jax.jit(lambda a, d: jnp.einsum("mk,mn->kn", a, d))
    return {
        "forward": lambda: forward(a, b),
        "dA": lambda: d_a(d_out, b),
        "dB": lambda: d_b(a, d_out),
    }


def worst_error(operands: Operands, shape: Shape, calls: dict[str, Callable[[], Any]]) -> float:
    """The largest ‖ours − float32‖ / ‖float32‖ over passes and three groups: first, longest, last.

    Of each group's result up to `CHECKED` rows, by the host's products. NaN where ours has one.
    """
    lens = shape.group_lens
    offsets = np.concatenate([[0], np.cumsum(lens)])
    out, d_a, d_b = (calls[which]() for which in PASSES)
    (d_a,), (d_b,) = d_a, d_b
    worst = 0.0
    for group in {0, int(np.argmax(lens)), len(lens) - 1}:
        rows = slice(int(offsets[group]), int(offsets[group + 1]))
        few = slice(rows.start, min(rows.stop, rows.start + CHECKED))
        count = few.stop - few.start
        a, d_out, b = (
            on_host(x) for x in (operands.a[rows], operands.d_out[rows], operands.b[group])
        )
        for ours, true in (
            (out[few], a[:count] @ b),
            (d_a[few], d_out[:count] @ b.T),
            (d_b[group, :CHECKED], a[:, :CHECKED].T @ d_out),
        ):
            if true.size == 0 or not true.any():
                continue
            off = float(np.linalg.norm(on_host(ours) - true) / np.linalg.norm(true))
            worst = float("nan") if np.isnan(worst + off) else max(worst, off)
    return worst


def on_host(array: Any) -> np.ndarray:
    """As float32, exactly."""
    return np.asarray(array).astype(np.float32)
