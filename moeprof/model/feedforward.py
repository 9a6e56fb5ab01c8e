"""Question: what does a feed-forward do with one token? (SwiGLU; dense layers, shared expert)"""

from __future__ import annotations

import jax

from moeprof.model.names import named


def swiglu(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """``(silu(x·gate) ⊙ (x·up))·down`` for ``x`` [..., M]: Shazeer, "GLU Variants", 2020, eq. 6."""
    gate = named(x @ weights["gate"], "mlpwi_0")
    up = named(x @ weights["up"], "mlpwi_1")
    return named((jax.nn.silu(gate) * up) @ weights["down"], "mlpwo")
