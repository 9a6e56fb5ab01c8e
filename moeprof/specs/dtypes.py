"""Question: which number formats may tensors be in, and how large are they?"""

from __future__ import annotations

from collections.abc import Collection

from moeprof.errors import SpecError

DTYPE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
MODEL_DTYPES = ("float32", "bfloat16", "float16")
"""What the bundled model computes in; the narrower ones need scales beside the values."""


def check_dtype(what: str, dtype: str, allowed: Collection[str] = MODEL_DTYPES) -> None:
    """Raise `SpecError` unless `dtype` is one of `allowed`; `what` names the field."""
    if dtype not in allowed:
        raise SpecError(f"{what}: expected one of {', '.join(allowed)}, found {dtype!r}.")
