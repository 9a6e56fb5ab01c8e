"""Question: what do the routed experts of one rank compute, given rows sorted by expert?"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from moeprof.model.names import named

# (rows [R, A] sorted by expert, matrices [E, A, B], rows per expert int32 [E]) -> [R, B]
GroupedProduct = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def grouped_swiglu(
    rows: jax.Array,
    weights: dict[str, jax.Array],
    rows_per_expert: jax.Array,
    product: GroupedProduct,
    row_weights: jax.Array | None = None,
) -> jax.Array:
    """SwiGLU of each row [R, M] with its expert's matrices; rows past the sum stay zero.

    ``weights`` holds gate and up [E, M, F] and down [E, F, M], and where the model has them
    gate_bias and up_bias [E, F] and down_bias [E, M]; ``rows_per_expert`` int32 [E].
    ``row_weights`` float32 [R] multiply what comes out. They do so before the down projection,
    which is linear: so their gradient is made of what it reads, and its result, a product as large
    as the others, is never made again in a rematerialised backward pass.
    """

    def projected(x: jax.Array, name: str, scale: jax.Array | None = None) -> jax.Array:
        out = product(x, weights[name], rows_per_expert)
        bias = weights.get(f"{name}_bias")
        if bias is None:
            return out
        return out + _scaled(rows_of_experts(bias, rows_per_expert, len(rows)), scale)

    gate = named(projected(rows, "gate"), "mlpwi_0")
    up = named(projected(rows, "up"), "mlpwi_1")
    hidden = _scaled(jax.nn.silu(gate) * up, row_weights)
    return named(projected(hidden, "down", row_weights), "mlpwo")


def _scaled(rows: jax.Array, scale: jax.Array | None) -> jax.Array:
    """Each row times its number of ``scale`` float32 [R], in the dtype of the rows."""
    return rows if scale is None else (rows * scale[:, None]).astype(rows.dtype)


def rows_of_experts(values: jax.Array, rows_per_expert: jax.Array, count: int) -> jax.Array:
    """For each of ``count`` rows sorted by expert its expert's values [E, F]; zeros past the sum.

    A product with a mask [count, E], whose transpose is another, where a gather's would scatter.
    """
    end = jnp.cumsum(rows_per_expert)
    row = jnp.arange(count, dtype=end.dtype)[:, None]
    is_expert = (row >= end - rows_per_expert) & (row < end)
    return is_expert.astype(values.dtype) @ values
