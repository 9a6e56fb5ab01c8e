"""Question: what do the routed experts of one rank compute, given rows sorted by expert?"""

from __future__ import annotations

from collections.abc import Callable

import jax

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

    ``weights`` holds gate and up [E, M, F] and down [E, F, M]; ``rows_per_expert`` int32 [E].
    """
    gate = named(product(rows, weights["gate"], rows_per_expert), "mlpwi_0")
    up = named(product(rows, weights["up"], rows_per_expert), "mlpwi_1")
    out = product(jax.nn.silu(gate) * up, weights["down"], rows_per_expert)
    return named(out, "mlpwo")
