"""Question: what is the answer to one question, to somebody who reads it in Python?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from moeprof.analyzers import analyze
from moeprof.analyzers.registry import (
    all_drawings,
    drawing,
    is_drawing,
    is_question,
    question,
)
from moeprof.answers.document import Drawing, Finding, Value, drawn_rows, figures_of
from moeprof.errors import SelectionError
from moeprof.reports.parts.phrases import title
from moeprof.reports.run.document import build
from moeprof.reports.run.words import sentence

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from moeprof.answers.document import ColumnInfo
    from moeprof.tables.analysis import Basis, Status
    from moeprof.tables.trace import Trace


def framed(rows: Sequence[Mapping[str, Value]], columns: Sequence[ColumnInfo]) -> pd.DataFrame:
    """One row each; ``table.attrs["units"]`` has the unit of each column.

    Figures that are not known are NaN, also where no row has one: None could not be added up.
    """
    import pandas as pd

    table = pd.DataFrame(rows, columns=[column["name"] for column in columns])
    blank = [c["name"] for c in columns if c["unit"] and table[c["name"]].isna().all()]
    table = table.astype(dict.fromkeys(blank, "float64"))
    table.attrs["units"] = {column["name"]: column["unit"] for column in columns}
    return table


class Answer:
    """What a run answers to one question. A figure that a law withholds is missing everywhere."""

    def __init__(self, trace: Trace, name: str) -> None:
        """Ask now; figures are drawn when they are asked for."""
        self._trace = trace
        found = analyze(trace, [name])
        self._analysis = found[name]
        self._document = build(trace, found)
        self.name = name

    @property
    def question(self) -> str:
        """The question, one sentence."""
        return self._found["question"]

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return sentence(self._document, self.name) if is_question(self.name) else ""

    @property
    def headline(self) -> dict[str, Value]:
        """The main figures by name; None where one is not known, or withheld."""
        return figures_of(self._found)

    @property
    def units(self) -> dict[str, str]:
        """The unit of each figure of the headline and of each column of the table."""
        metrics = {metric["metric"]: metric["unit"] for metric in self._found["headline"]}
        return metrics | {column["name"]: column["unit"] for column in self._found["columns"]}

    @property
    def meanings(self) -> dict[str, str]:
        """What each column of the table holds."""
        return {column["name"]: column["meaning"] for column in self._found["columns"]}

    @property
    def notes(self) -> tuple[str, ...]:
        """What else is to be known, and what the answer cannot see."""
        return tuple(self._found["notes"])

    @property
    def status(self) -> Status:
        """``ok``; ``none`` where the run has nothing of the kind; ``not_known``; ``withheld``."""
        return self._analysis.status

    @property
    def basis(self) -> Basis:
        """What times are per device of: ``step``, or ``capture`` where no step was measured."""
        return self._analysis.basis

    @property
    def table(self) -> pd.DataFrame:
        """One row per what the question asks about; ``units`` and ``meanings`` tell the columns.

        A figure that is withheld, or not known, is NaN or None. The table is the caller's own: what
        is changed in it stays there.

        Example:
            >>> answer.table.groupby("component")["per_step_ns"].sum()
        """
        return self._table.copy()

    @cached_property
    def _table(self) -> pd.DataFrame:
        found = self._found
        drawn = self._document["drawings"].get(self.name)
        rows = drawn_rows(drawn) if drawn else self._document["analyses"][self.name]["rows"]
        return framed(rows, found["columns"])

    @property
    def figures(self) -> tuple[str, ...]:
        """Captions of the figures that there are to draw; that of the answer itself is empty."""
        return tuple(caption for caption, _ in self._drawn)

    def figure(self, place: int = 0) -> Figure:
        """The figure at this place of ``figures``, drawn by plotly.

        It stands on light and on dark; ``figure.update_layout(template=…)`` gives it another look.

        Raises:
            SelectionError: there is none, as the answer has nothing to draw, or fewer figures.
        """
        from plotly.graph_objects import Figure

        from moeprof.reports.run.cell import LOOK

        if not isinstance(place, int) or not 0 <= place < len(self._drawn):
            raise SelectionError(self._undrawn(place))
        return Figure(self._drawn[place][1]).update_layout(template=LOOK)

    def _undrawn(self, place: int) -> str:
        """Why there is no figure at this place, and where to look."""
        if is_drawing(self.name):
            beside = drawing(self.name).beside
            return f"{self.name}: its figures are those of {beside}: .ask({beside!r}).figure()"
        if self._drawn:
            most = len(self._drawn) - 1
            return f"{self.name}: no figure has the place {place!r}; there are: 0 to {most}"
        reasons = {
            "withheld": "its figures are withheld; .notes says why",
            "none": "this run has none of the kind; .notes says why",
        }
        why = reasons.get(self.status, "nothing is drawn of it; .table has its rows")
        return f"{self.name}: expected a figure, found none, as {why}"

    @cached_property
    def _drawn(self) -> list[tuple[str, object]]:
        if not is_question(self.name) or self.status == "withheld":
            return []
        beside = [each.name for each in all_drawings() if each.beside == self.name]
        document = build(self._trace, analyze(self._trace, [self.name, *beside]))
        specs = ((each.caption, each.draw(document)) for each in question(self.name).figures)
        return [(caption, spec) for caption, spec in specs if spec is not None]

    @property
    def _found(self) -> Finding | Drawing:
        if is_drawing(self.name):
            return self._document["drawings"][self.name]
        return self._document["analyses"][self.name]

    def __str__(self) -> str:
        """The section that the command prints: the answer, its first rows, its notes."""
        from moeprof.reports.run.terminal import IN_PYTHON, picture, section

        if self.name in self._document["drawings"]:
            return picture(self._document["drawings"][self.name], IN_PYTHON).plain
        return section(self._document, self.name, ways=IN_PYTHON).plain

    def __repr__(self) -> str:
        """What it is, in one line."""
        return f"<moeprof answer {self.name}: {self.sentence or title(self.name)}>"

    def _repr_html_(self) -> str:
        from moeprof.reports.run.cell import answer_cell

        return answer_cell(self._document, self.name)
