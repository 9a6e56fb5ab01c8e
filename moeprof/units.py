"""Turn numbers into text. The only place that does: elsewhere times are int64 ns, sizes bytes.

GiB is 2**30 bytes and GB is 10**9; a text never mixes them. Memory is shown in binary units,
bandwidth in decimal ones, as vendors state it.
"""

from __future__ import annotations

import itertools

_TIME_STEPS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_FLOP_STEPS = ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"))
_SIZE_STEPS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def format_ns(duration_ns: float) -> str:
    """Nanoseconds as the largest unit that keeps the figure at or above 1, with 4 digits."""
    return _scaled(duration_ns, _TIME_STEPS) or f"{duration_ns:.0f} ns"


def format_bytes(size_bytes: float) -> str:
    """Bytes as the largest binary unit that keeps the figure at or above 1, with 4 digits."""
    return _scaled(size_bytes, _SIZE_STEPS) or f"{size_bytes:.0f} B"


def format_flops(flops: float) -> str:
    """FLOPs as the largest decimal unit that keeps the figure at or above 1, with 4 digits."""
    return _scaled(flops, _FLOP_STEPS) or f"{flops:,.0f} FLOP"


def format_percent(share: float) -> str:
    """A share in [0, 1] as percent with one decimal; ``0.184`` is ``18.4 %``."""
    return f"{100 * share:.1f} %"


def format_count(count: float) -> str:
    """A count with commas between thousands; a mean below 10 that is not whole has 2 digits."""
    if 0 < abs(count) < 10 and count != round(count):
        return f"{count:.2g}"
    return f"{count:,.0f}"


def _scaled(value: float, steps: tuple[tuple[int, str], ...]) -> str:
    """`value` in the largest unit that its rounded figure reaches; empty below the smallest.

    Rounding may carry: 999,999 ns are no 1,000.0 µs but 1.000 ms.
    """
    units = [*steps, (1, "")]
    for (step, unit), (below, _) in itertools.pairwise(units):
        rounded = round(abs(value) / below, _decimals(abs(value) / below) if below > 1 else 0)
        if rounded * below >= step:
            return f"{_four_digits(value / step)} {unit}"
    return ""


def _four_digits(value: float) -> str:
    """Four significant digits without an exponent: 1.234, 12.34, 123.4, 1234."""
    return f"{value:,.{_decimals(abs(value))}f}"


def _decimals(magnitude: float) -> int:
    """Digits behind the point that make four in all; rounding may carry into a fourth before it."""
    for decimals, bound in ((3, 10), (2, 100), (1, 1000)):
        if round(magnitude, decimals) < bound:
            return decimals
    return 0
