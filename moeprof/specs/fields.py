"""Question: does each field of a specification hold a number of the kind that it declares?"""

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
