"""Question: how many nanoseconds is a stamp that is written in microseconds?"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

_LARGEST = 2**62


def nanoseconds(microseconds: object) -> int | None:
    """Rounded down, exactly; None where it is no finite number or beyond 146 years.

    Whole numbers and texts (``"12.345"``) are taken: a binary fraction of microseconds since 1970
    is a quarter of a microsecond wide.
    """
    if isinstance(microseconds, bool):
        return None
    if isinstance(microseconds, int):
        value = microseconds * 1000
    elif isinstance(microseconds, str):
        try:
            exact = Decimal(microseconds)
        except InvalidOperation:
            return None
        if not exact.is_finite() or abs(exact) > _LARGEST:
            return None
        value = int((exact * 1000).to_integral_value(rounding="ROUND_FLOOR"))
    else:
        return None
    return value if abs(value) < _LARGEST else None
