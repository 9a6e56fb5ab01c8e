"""The answer to one question: a headline, a table with its schema, and what it cannot see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moeprof.columns.table import Table
from moeprof.tables.law import Scope
from moeprof.tables.once import LazyFrame, table_of
from moeprof.tables.schema import Schema

Status = Literal["ok", "none", "not_known", "withheld"]
"""ok: answered; none: the run has nothing of the kind, as ``why`` says; not_known: the record
cannot carry an answer; withheld: a law forbids to show any figure."""

Basis = Literal["step", "capture"]
"""What times are per device of: a step, or the whole capture where no step could be measured."""


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

    ``table`` may be given as a `Table` or a frame; as an attribute it is a pandas frame.
    ``withheld`` are figures of it that a law forbids to show; what shows it leaves them out.
    ``why`` says why there is nothing; it is the first of the notes, too.
    """

    name: str
    question: str
    headline: tuple[Metric, ...]
    schema: Schema
    table: LazyFrame = LazyFrame()  # noqa: RUF009 (a descriptor, which instances share)
    notes: tuple[str, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    status: Status = "ok"
    why: str = ""
    basis: Basis = "step"

    def changed(self, **fields: Any) -> Analysis:
        """The same with other fields; its table is not read for that."""
        return Analysis(**{**vars(self), **fields})

    @property
    def cells(self) -> Table:
        """The table without pandas."""
        found: Table = table_of(self, "table")
        return found


def nothing(
    name: str,
    question: str,
    schema: Schema,
    why: str,
    *notes: str,
    headline: tuple[Metric, ...] = (),
    status: Status = "none",
) -> Analysis:
    """The answer where there is nothing to answer with, because of ``why``."""
    return Analysis(
        name, question, headline, schema, schema.table(), (why, *notes), status=status, why=why
    )
