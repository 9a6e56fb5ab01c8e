"""Question: how is the size of a row computed and stated, for one plan or thousands alike?

Sizes are numbers, or arrays with one entry per plan; both go through the same arithmetic. A row
whose dimensions are not all known has no size, and its formula says which one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moeprof.projector.breakdown import Confidence, Pool, Row
from moeprof.projector.setting import Amount, Count

Dimensions = Mapping[str, Amount | None]


def ceil_div(number: Count, divisor: Count) -> Count:
    """The quotient, rounded up."""
    return -(-number // divisor)


def smaller(one: Amount, other: Amount) -> Amount:
    """The smaller of two, entry by entry."""
    return _plain(np.minimum(one, other))


def larger(one: Amount, other: Amount) -> Amount:
    """The larger of two, entry by entry."""
    return _plain(np.maximum(one, other))


def whole(amount: Amount) -> Amount:
    """Rounded to whole bytes, so that rows sum to their total exactly."""
    if isinstance(amount, int):
        return amount
    rounded = np.rint(amount).astype(np.int64)
    return int(rounded) if rounded.ndim == 0 else rounded


def product_row(
    name: str,
    count: float,
    dimensions: Dimensions,
    item_bytes: Amount,
    *,
    pool: Pool = "temp",
    kind: str = "temporaries",
    source: str,
    confidence: Confidence,
    is_routed: bool = False,
) -> Row:
    """``count`` arrays of these dimensions, ``item_bytes`` per element.

    A dimension that is None leaves the size unknown.
    """
    missing = [symbol for symbol, value in dimensions.items() if value is None]
    shape = " · ".join(dimensions)
    if missing:
        lacking = ", ".join(missing)
        formula = f"cannot estimate: {lacking} of {shape} needs sequence and pdbs"
        return Row(name, pool, kind, None, formula, source, "unknown", is_routed)
    size: Amount = item_bytes
    for value in dimensions.values():
        assert value is not None
        size = size * value
    copies = "" if count == 1 else f"{count:g} × "
    values = ", ".join(f"{symbol} = {value:,}" for symbol, value in _scalars(dimensions))
    bytes_text = f" · {item_bytes:g} B" if isinstance(item_bytes, int | float) else ""
    formula = f"{copies}{shape}{bytes_text}" + (f"; {values}" if values else "")
    size = size if count == 1 else size * count
    return Row(name, pool, kind, whole(size), formula, source, confidence, is_routed)


def _scalars(dimensions: Dimensions) -> list[tuple[str, int | float]]:
    return [(s, v) for s, v in dimensions.items() if isinstance(v, int | float)]


def _plain(amount: Amount) -> Amount:
    """Python's number where numpy made a scalar of its own of one."""
    if isinstance(amount, np.generic):
        value: Amount = amount.item()
        return value
    return amount
