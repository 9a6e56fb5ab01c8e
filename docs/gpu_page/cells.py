"""Question: how does docs/gpu.md write a table, a figure and what failed?"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    head = list(head)
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def measured_on(machine: dict[str, Any]) -> str:
    """Cards, driver, versions and date in one sentence."""
    cards = machine["cards"]
    name, driver, _ = (
        (part.strip() for part in cards[0].split(",")) if cards else ("no GPU", "", "")
    )
    others = (("jax", "jax"), ("torch", "torch"), ("nvcc", "nvcc"))
    versions = ", ".join(f"{label} {machine[key]}" for key, label in others)
    return f"Measured on {len(cards)} × {name}, driver {driver}, {versions}, {machine['date']}."


def best_of(rates: dict[str, float], names: Iterable[str]) -> float | None:
    """The highest rate of those contestants that have one."""
    return max((rates[name] for name in names if name in rates), default=None)


def rate(value: float) -> str:
    """A bandwidth: whole numbers, one decimal below ten."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def ratio(ours: float | None, other: float | None) -> str:
    """``ours`` over ``other`` with two decimals below ten, else none."""
    if not ours or not other:
        return "–"
    value = ours / other
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def share(ours: float | None, other: float | None) -> str:
    """``ours`` in percent of ``other``."""
    return f"{100 * ours / other:.0f} %" if ours and other else "–"


def spread(values: list[float]) -> str:
    """Mean ± its standard error, four decimals; the mean alone of a single value."""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {error:.4f}"


def failures(reasons: dict[str, str]) -> list[str]:
    """A list of what failed and why; nothing where nothing did."""
    lines = [
        f"- {name}: {why.split(' [')[0][:160].replace('`', '')}" for name, why in reasons.items()
    ]
    return ["\n".join(lines)] if lines else []
