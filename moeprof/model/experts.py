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
) -> jax.Array:
    """SwiGLU of each row [R, M] with its expert's matrices; rows past the sum stay zero.

    ``weights`` holds gate and up [E, M, F] and down [E, F, M], and where the model has them
    gate_bias and up_bias [E, F] and down_bias [E, M]; ``rows_per_expert`` int32 [E].
    """

    def projected(x: jax.Array, name: str) -> jax.Array:
        out = product(x, weights[name], rows_per_expert)
        bias = weights.get(f"{name}_bias")
        return out if bias is None else out + rows_of_experts(bias, rows_per_expert, len(rows))

    gate = named(projected(rows, "gate"), "mlpwi_0")
    up = named(projected(rows, "up"), "mlpwi_1")
    return named(projected(jax.nn.silu(gate) * up, "down"), "mlpwo")


def rows_of_experts(values: jax.Array, rows_per_expert: jax.Array, count: int) -> jax.Array:
    """For each of ``count`` rows sorted by expert its expert's values [E, F]; zeros past the sum.

    A product with a mask [count, E], whose transpose is another, where a gather's would scatter.
    """
    end = jnp.cumsum(rows_per_expert)
    row = jnp.arange(count, dtype=end.dtype)[:, None]
    is_expert = (row >= end - rows_per_expert) & (row < end)
    return is_expert.astype(values.dtype) @ values
