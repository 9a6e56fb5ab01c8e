"""Question: how is the precision that a product asks for written in JAX?"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.errors import ReplayError
from moeprof.hlo.program import Op

LEVELS = ("DEFAULT", "HIGH", "HIGHEST")
"""PrecisionConfig.Precision of xla/xla_data.proto by number; the same names as in jax.lax."""


def precision(op: Op, wanted: Sequence[str]) -> str:
    """The argument with the precision of each operand, empty where nothing is asked for.

    Raises:
        ReplayError: jax.lax has no such precision.
    """
    if unknown := [name for name in wanted if name not in LEVELS]:
        raise ReplayError(f"{op.name} asks for precision {unknown[0]}, which has no translation")
    if not set(wanted) - {LEVELS[0]}:
        return ""
    return f", precision=({', '.join(f'lax.Precision.{name}' for name in wanted)})"
