"""The answer to one question: a headline, a table with its schema, and what it cannot see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from moeprof.tables.law import Scope
from moeprof.tables.schema import Schema


@dataclass(frozen=True)
class Metric:
    """One headline figure. ``value`` is None where the data cannot carry it."""

    metric: str
    value: float | int | str | None
    unit: str


@dataclass(frozen=True)
class Withheld:
    """Figures of an answer that are not shown because of a law."""

    law: str
    scope: Scope

    def covers(self, figure: str) -> bool:
        """Whether a metric or column of this name is among them."""
        return not self.scope.figures or figure in self.scope.figures

    def is_of(self, row: Mapping[str, object]) -> bool:
        """Whether they are of this row; what the row does not say cannot tell it apart."""
        scope = self.scope
        asked = {"host": scope.host, "device": scope.device, "step": scope.step, "op": scope.op}
        return all(row.get(k, v) == v for k, v in asked.items() if v not in ("", -1))


@dataclass(frozen=True)
class Analysis:
    """What an analyzer returns: pure data, nothing drawn, nothing printed.

    ``withheld`` are figures of it that a law forbids to show; what shows it leaves them out.
    """

    name: str
    question: str
    headline: tuple[Metric, ...]
    schema: Schema
    table: pd.DataFrame
    notes: tuple[str, ...] = ()
    withheld: tuple[Withheld, ...] = ()
