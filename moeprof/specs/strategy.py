"""Question: how do tokens reach their experts and back?

================== ======================= ============================ ==================
name               exchange over `expert`  expert product               tokens dropped
================== ======================= ============================ ==================
dense-cfX          all_to_all              batched dense                beyond capacity
sparse-ragged-dot  ragged_all_to_all       jax.lax.ragged_dot           none
sparse-gmm         ragged_all_to_all       grouped_gemm                 none
sparse-gmm-deepep  moe_dispatch, _combine  grouped_gemm                 none
================== ======================= ============================ ==================

``X`` is the capacity factor: an expert takes X times what an even router would give it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeprof.errors import SpecError

SPARSE = ("sparse-ragged-dot", "sparse-gmm", "sparse-gmm-deepep")
_DENSE_PREFIX = "dense-cf"


@dataclass(frozen=True)
class Strategy:
    """``kind`` is ``dense`` or one of `SPARSE`; only ``dense`` has a ``capacity_factor``."""

    kind: str
    capacity_factor: float | None = None

    @property
    def name(self) -> str:
        """The text that `parse_strategy` reads: ``dense-cf1.25``, ``sparse-gmm``."""
        if self.capacity_factor is None:
            return self.kind
        return f"{_DENSE_PREFIX}{self.capacity_factor:g}"


MOST_CAPACITY = 1e6
"""No capacity factor is above this: one of experts / top-k already drops nothing."""


def parse_strategy(text: str) -> Strategy:
    """Read a strategy's name.

    Raises:
        SpecError: the name is none of the table above; the message lists them.
    """
    if text in SPARSE:
        return Strategy(text)
    if text.startswith(_DENSE_PREFIX):
        factor = _positive_number(text.removeprefix(_DENSE_PREFIX))
        if factor is not None:
            return Strategy("dense", factor)
    raise SpecError(
        f"strategy: expected {_DENSE_PREFIX}X with a capacity factor X > 0 and at most "
        f"{MOST_CAPACITY:,.0f} (for example {_DENSE_PREFIX}1.25), {', '.join(SPARSE[:-1])} or "
        f"{SPARSE[-1]}, found {text!r}."
    )


def expert_capacity(sequence: int, top_k: int, experts: int, capacity_factor: float) -> int:
    """Tokens of one sequence that one expert takes: at least 1.

    ``ceil(sequence · top_k / experts) · factor``, the rule of MaxText's dense path
    (AI-Hypercomputer/maxtext, layers/moe.py); Fedus et al., "Switch Transformers", 2021, section
    2.2, states it per batch instead.
    """
    even_share = math.ceil(sequence * top_k / experts)
    return max(int(max(even_share * capacity_factor, capacity_factor)), 1)


def _positive_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= MOST_CAPACITY else None
