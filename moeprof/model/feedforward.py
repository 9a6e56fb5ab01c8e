"""Question: what does a feed-forward do with one token? (SwiGLU; dense layers, shared expert)"""

from __future__ import annotations

import jax

from moeprof.model.names import named


def swiglu(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """``(silu(x·gate) ⊙ (x·up))·down`` for ``x`` [..., M]: Shazeer, "GLU Variants", 2020, eq. 6.

    Each product adds the bias of its name, such as gate_bias, where there is one.
    """

    def projected(x: jax.Array, name: str) -> jax.Array:
        out = x @ weights[name]
        bias = weights.get(f"{name}_bias")
        return out if bias is None else out + bias

    gate = named(projected(x, "gate"), "mlpwi_0")
    up = named(projected(x, "up"), "mlpwi_1")
    return named(projected(jax.nn.silu(gate) * up, "down"), "mlpwo")
