"""Models, plans and strategies as values; what a field of one may hold: numbers, number formats."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields

from moeprof.errors import SpecError


def check_numbers(what: str, spec: object, may_be_zero: Collection[str] = ()) -> None:
    """Check the fields of a dataclass that are declared ``int``, ``float`` or ``bool``.

    Integers are at least 1, or 0 where ``may_be_zero`` names them; a ``float`` is positive and
    finite, and may be written as an integer. The module of ``spec`` must postpone its annotations,
    so that a declared type is its name.

    Raises:
        SpecError: a field holds something else; ``what`` and its name are in the message.
    """
    for field in fields(spec):  # type: ignore[arg-type]
        value = getattr(spec, field.name)
        least = 0 if field.name in may_be_zero else 1
        expected = _complaint(str(field.type), value, least)
        if expected:
            raise SpecError(f"{what} {field.name}: expected {expected}, found {value!r}.")


def _complaint(kind: str, value: object, least: int) -> str | None:
    """What a field of a kind expects, if ``value`` is not that."""
    if kind == "bool":
        return None if isinstance(value, bool) else "true or false"
    if kind == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            return "an integer"
        return None if value >= least else f"at least {least}"
    if kind == "float":
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return None
        return "a positive number"
    return None


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
