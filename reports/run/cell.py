"""Question: how do a run, an answer and a trust record look in a notebook's cell?"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.answers.document import Document, Drawing, Finding, drawn_column, is_unrecorded
from moeprof.answers.story import count_of, metric_name
from moeprof.answers.values import printable, written
from moeprof.reports.parts.phrases import described_trust, title, troubles
from moeprof.reports.parts.templating import fragment
from moeprof.reports.parts.views import Cell, Column, TableView, finding_table, read_first
from moeprof.reports.run.terminal import IN_PYTHON, WIDTH, advice, overview
from moeprof.reports.run.words import sentence

_FEW_ROWS = 12
_WIDTH = 130
"""Characters of a table that a notebook shows side by side."""
_GAP = 3
"""Characters that the space between two columns takes."""
_MOST_WIDE = 40
"""Characters of a text in one line; a longer one is wrapped."""

_CLEAR = "rgba(0,0,0,0)"
_LINES = {"gridcolor": "rgba(128,128,128,0.25)", "linecolor": "rgba(128,128,128,0.5)"}
_AXIS = {**_LINES, "zerolinecolor": "rgba(128,128,128,0.5)", "zerolinewidth": 1}
LOOK = {
    "layout": {
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "font": {"color": "#808080"},
        "modebar": {"bgcolor": _CLEAR, "color": "#a0a0a0", "activecolor": "#606060"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
}
"""Plotly's template for figures in a notebook: colours that can be read on light and on dark."""


class _Fitting(NamedTuple):
    """The columns of a table that fit, and the names of those that do not."""

    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]]
    left_out: tuple[str, ...]


def run_cell(document: Document) -> str:
    """The first screen of a run, as text of one width."""
    return text_cell(overview(document, IN_PYTHON).plain)


def answer_cell(document: Document, name: str) -> str:
    """The answer to one question: its sentence, its figures, the first rows, its notes.

    Columns that are read first come first; of the others those that fit.
    """
    if name in document["drawings"]:
        return _picture_cell(document["drawings"][name], name)
    finding = document["analyses"][name]
    few: Finding = {**read_first(name, finding), "rows": finding["rows"][:_FEW_ROWS]}
    table = finding_table(few, name, title(name))
    is_table = bool(table.rows) and name != "hints"  # each hint is a paragraph
    fitting = _fitting(table)
    left = len(finding["rows"]) - len(few["rows"])
    return fragment(
        "cell.html",
        heading=title(name),
        said=_NOTHING if is_unrecorded(document) else sentence(document, name),
        text="" if is_table else _advice(document, name),
        facts=_facts(finding),
        columns=fitting.columns if is_table else (),
        rows=fitting.rows,
        left_out=_left_out(left, fitting) if is_table else "",
        notes=[printable(note) for note in finding["notes"]],
    )


def _advice(document: Document, name: str) -> str:
    """Hints as a numbered list; nothing of another answer."""
    return advice(document, WIDTH, ways=IN_PYTHON).plain if name == "hints" else ""


_NOTHING = "No profile was recorded, so there is no figure."


def trust_cell(document: Document) -> str:
    """The verdict of a trust record, and each law that failed or warns."""
    notes = [f"{law['check']}: {law['verdict']}: {law['detail']}" for law in troubles(document)]
    return _cell(heading="Trust", said=described_trust(document), notes=notes)


def text_cell(text: str) -> str:
    """Text as a terminal shows it."""
    return _cell(text=text)


def _picture_cell(drawing: Drawing, name: str) -> str:
    rows = max((len(drawn_column(drawing, each)) for each in drawing["data"]), default=0)
    said = f"A picture of {count_of(rows)}; .table has them."
    return _cell(heading=name, said=said, notes=drawing["notes"])


def _fitting(table: TableView) -> _Fitting:
    """The first columns of a table that stand side by side; the first one always."""
    wide = [_width(table, place) for place in range(len(table.columns))]
    count = next((n for n in range(len(wide), 1, -1) if sum(wide[:n]) <= _WIDTH), 1)
    left = tuple(column.name for column in table.columns[count:]) if table.rows else ()
    return _Fitting(table.columns[:count], [row[:count] for row in table.rows], left)


def _width(table: TableView, place: int) -> int:
    texts = [table.columns[place].name, *(row[place].text for row in table.rows)]
    return min(max(map(len, texts)), _MOST_WIDE) + _GAP


def _left_out(rows: int, fitting: _Fitting) -> str:
    """What of a table is not shown, in words; empty where all is."""
    names = fitting.left_out
    columns = f"the column{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""
    return " and ".join(filter(None, [count_of(rows) if rows else "", columns]))


def _facts(finding: Finding) -> list[tuple[str, str]]:
    known = (metric for metric in finding["headline"] if metric["value"] is not None)
    return [(metric_name(metric), written(metric["value"], metric["unit"])) for metric in known]


def _cell(heading: str = "", said: str = "", text: str = "", notes: list[str] | None = None) -> str:
    shown = [printable(note) for note in notes or ()]
    return fragment(
        "cell.html", heading=heading, said=said, text=text, facts=(), columns=(), rows=(),
        left_out="", notes=shown,
    )  # fmt: skip
