"""Turn numbers into text. The only place that does: elsewhere times are int64 ns, sizes bytes.

GiB is 2**30 bytes and GB is 10**9; a text never mixes them. Memory is shown in binary units,
bandwidth in decimal ones, as vendors state it.
"""

from __future__ import annotations

_TIME_STEPS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_FLOP_STEPS = ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"))
_SIZE_STEPS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def format_ns(duration_ns: float) -> str:
    """Nanoseconds as the largest unit that keeps the figure at or above 1, with 4 digits."""
    for step_ns, unit in _TIME_STEPS:
        if abs(duration_ns) >= step_ns:
            return f"{_four_digits(duration_ns / step_ns)} {unit}"
    return f"{duration_ns:.0f} ns"


def format_bytes(size_bytes: float) -> str:
    """Bytes as the largest binary unit that keeps the figure at or above 1, with 4 digits."""
    for step_bytes, unit in _SIZE_STEPS:
        if abs(size_bytes) >= step_bytes:
            return f"{_four_digits(size_bytes / step_bytes)} {unit}"
    return f"{size_bytes:.0f} B"


def format_flops(flops: float) -> str:
    """FLOPs as the largest decimal unit that keeps the figure at or above 1, with 4 digits."""
    for step, unit in _FLOP_STEPS:
        if abs(flops) >= step:
            return f"{_four_digits(flops / step)} {unit}"
    return f"{flops:,.0f} FLOP"


def format_percent(share: float) -> str:
    """A share in [0, 1] as percent with one decimal; ``0.184`` is ``18.4 %``."""
    return f"{100 * share:.1f} %"


def format_count(count: float) -> str:
    """A count with commas between thousands; a mean below 10 that is not whole has 2 digits."""
    if 0 < abs(count) < 10 and count != round(count):
        return f"{count:.2g}"
    return f"{count:,.0f}"


def _four_digits(value: float) -> str:
    """Four significant digits without an exponent: 1.234, 12.34, 123.4, 1234."""
    magnitude = abs(value)
    decimals = 3 if magnitude < 10 else 2 if magnitude < 100 else 1 if magnitude < 1000 else 0
    return f"{value:,.{decimals}f}"
