"""The answer to one question: a headline, a table with its schema, and what it cannot see."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from moeprof.tables.schema import Schema


@dataclass(frozen=True)
class Metric:
    """One headline figure. ``value`` is None where the data cannot carry it."""

    metric: str
    value: float | int | str | None
    unit: str


@dataclass(frozen=True)
class Analysis:
    """What an analyzer returns: pure data, nothing drawn, nothing printed."""

    name: str
    question: str
    headline: tuple[Metric, ...]
    schema: Schema
    table: pd.DataFrame
    notes: tuple[str, ...] = ()
