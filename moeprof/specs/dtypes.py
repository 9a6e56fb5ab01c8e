"""Question: which number formats may a model compute and be stored in, and how large are they?"""

from __future__ import annotations

from moeprof.errors import SpecError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_dtype(what: str, dtype: str) -> None:
    """Raise `SpecError` unless `dtype` is one of `DTYPE_BYTES`; `what` names the field."""
    if dtype not in DTYPE_BYTES:
        raise SpecError(f"{what}: expected one of {', '.join(DTYPE_BYTES)}, found {dtype!r}.")
