"""Question: which pieces do several pages have: tables, a run's parts, its checks, a figure?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from moeprof.answers import story
from moeprof.answers.bars import Figure
from moeprof.answers.colours import HATCHED, colour, in_order
from moeprof.answers.document import ColumnInfo, Document, Finding, TrustInfo, Value
from moeprof.answers.values import (
    cell_text,
    column_heading,
    is_number,
    numbers,
    printable,
    shortened,
)
from moeprof.reports.parts import phrases
from moeprof.units import format_ns, format_percent

MOST_ROWS = 1000
_CELL_WIDTH = 72
_PROSE_WIDTH = 280
_PROSE = ("evidence", "change", "reason")
"""Columns that hold sentences; the others hold names, of which both ends tell most."""

_LABELLED = ("component", "layer_kind", "op_kind", "cause", "hint")
"""Columns of names that the rest of the page writes as words."""

_ABSENT = re.compile(r"(?<![\w.])-1\b")
"""Stands in the meaning of a column in which -1 is no number but says that there is none."""

# The step column of the runs' table says these already.
_IN_STEP = ("step_time_median", "step_time_min", "step_time_max")
_MARKS = {"ok": "✓", "warn": "!", "fail": "✗", "unchecked": "?"}


@dataclass(frozen=True)
class Cell:
    """One cell: the text shown, the whole text where it was cut, and the value to sort by.

    One that is absent has a number in the document which says so; `whole` tells what it says.
    """

    text: str
    value: Value
    whole: str | None = None
    bar: float | None = None
    is_absent: bool = False


@dataclass(frozen=True)
class Column:
    """A heading with its meaning; figures stand to the right."""

    name: str
    meaning: str
    is_figure: bool


@dataclass(frozen=True)
class TableView:
    """A table; `left_out` rows are in the document only."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0


def finding_table(finding: Finding, anchor: str, caption: str) -> TableView:
    """The rows of one analysis, at most `MOST_ROWS` of them."""
    rows = finding["rows"][:MOST_ROWS]
    columns = tuple(
        Column(
            column_heading(c),
            c["meaning"],
            numbers([row[c["name"]] for row in rows]),
        )
        for c in finding["columns"]
    )
    cells = tuple(tuple(_named_cell(row[c["name"]], c) for c in finding["columns"]) for row in rows)
    return TableView(f"{anchor}-table", caption, columns, cells, len(finding["rows"]) - len(rows))


def read_first(name: str, finding: Finding) -> Finding:
    """The finding of a question with the columns in front that are read first."""
    first = phrases.first_columns(name)
    by_name = {column["name"]: column for column in finding["columns"]}
    ahead = [by_name[column] for column in first if column in by_name]
    rest = [column for column in finding["columns"] if column["name"] not in first]
    return {**finding, "columns": [*ahead, *rest]}


def _named_cell(value: Value, column: ColumnInfo) -> Cell:
    """A value of a document's column as the page names it; the value stays as it is."""
    name = column["name"]
    if value == -1 and is_number(value) and _ABSENT.search(column["meaning"]):
        return Cell("–", value, column["meaning"], is_absent=True)
    made = cell(value, column["unit"], name)
    if not isinstance(value, str) or not value:
        return made
    if name == "look":
        return replace(made, text=phrases.title(value))
    if name in _LABELLED and made.whole is None:
        return replace(made, text=story.label(value))
    return made


def cell(value: Value, unit: str = "", name: str = "") -> Cell:
    """A value as a cell: long text is cut in its middle and kept whole beside it."""
    whole = cell_text(value, name, unit)
    text = shortened(whole, _PROSE_WIDTH if name in _PROSE else _CELL_WIDTH)
    return Cell(text, value, None if text == whole else whole)


def runs_table(documents: Sequence[Document], labels: Sequence[str]) -> TableView:
    """One row per run: step time, headline figures that every run's table can show, trust."""
    metrics = {
        metric["metric"]: metric["unit"]
        for document in documents
        for finding in document["analyses"].values()
        for metric in finding["headline"]
        if metric["metric"] not in _IN_STEP
    }
    columns = (
        Column("run", "name of the run", False),
        Column("step", "median duration of the used steps", True),
        *(
            Column(story.label(name), f"unit: {unit or 'none'}", True)
            for name, unit in metrics.items()
        ),
        Column("trust", "worst verdict of the checks of the input", False),
    )
    rows = tuple(
        (
            cell(label),
            cell(_median_ns(document), "ns"),
            *(cell(_headline(document, name), unit) for name, unit in metrics.items()),
            cell(phrases.worst_verdict(document)),
        )
        for document, label in zip(documents, labels, strict=True)
    )
    return TableView("runs-table", "The runs", columns, rows)


def parts_table(documents: Sequence[Document], labels: Sequence[str]) -> TableView:
    """One row per component, one column per run; bars on one scale."""
    runs = [{part.component: part for part in story.parts(document)} for document in documents]
    components = in_order(name for run in runs for name in run)
    totals = {
        name: sum(run[name].duration_ns for run in runs if name in run) for name in components
    }
    longest_ns = max((part.duration_ns for run in runs for part in run.values()), default=0.0)
    rows = tuple(
        (cell(story.label(name)), *(_part_cell(run.get(name), longest_ns) for run in runs))
        for name in sorted(totals, key=lambda name: -totals[name])
    )
    named = zip(labels, documents, strict=True)
    columns = (
        Column("component", "part of the model or of the runtime", False),
        *(Column(label, f"op time {story.basis(document)}", True) for label, document in named),
    )
    return TableView("parts-table", "Op time of each component", columns, rows)


def _part_cell(part: story.Part | None, longest_ns: float) -> Cell:
    if part is None:
        return Cell("none", None)
    bar = part.duration_ns / longest_ns if longest_ns else 0.0
    return Cell(format_ns(part.duration_ns), part.duration_ns, None, bar)


def _median_ns(document: Document) -> float | None:
    time = story.step_time(document)
    return time.median_ns if time else None


def _headline(document: Document, name: str) -> Value:
    for finding in document["analyses"].values():
        for metric in finding["headline"]:
            if metric["metric"] == name:
                return metric["value"]
    return None


@dataclass(frozen=True)
class Segment:
    """One component in a stacked bar. Widths are shares of the longest bar on the page."""

    component: str
    name: str
    colour: str
    is_hatched: bool
    width: float
    share: float
    share_text: str
    time_text: str


@dataclass(frozen=True)
class Check:
    """One line of the trust record; the mark repeats the verdict for those who see no colour."""

    name: str
    verdict: str
    mark: str
    detail: str


@dataclass(frozen=True)
class FigureView:
    """One figure: `label` says what it shows to those who do not see it, `caption` to all.

    `reading` is how to read it, what a caption has behind a colon.
    """

    id: str
    label: str
    caption: str
    reading: str
    spec: Figure


def segments(parts: Iterable[story.Part], longest_ns: float) -> list[Segment]:
    """The bar of one run, where the longest on the page takes `longest_ns`."""
    return [
        Segment(
            component=part.component,
            name=story.label(part.component),
            colour=colour(part.component),
            is_hatched=part.component in HATCHED,
            width=part.duration_ns / longest_ns if longest_ns else 0.0,
            share=part.share,
            share_text=format_percent(part.share),
            time_text=format_ns(part.duration_ns),
        )
        for part in parts
    ]


def stacked(found: Iterable[Segment]) -> tuple[Segment, ...]:
    """Segments in the order of every bar; of a component that several runs have, the last."""
    known = {segment.component: segment for segment in found}
    return tuple(known[name] for name in in_order(known))


def check_views(found: Sequence[TrustInfo]) -> tuple[Check, ...]:
    """Checks as the page shows them."""
    return tuple(
        Check(printable(t["check"]), t["verdict"], _MARKS[t["verdict"]], printable(t["detail"]))
        for t in found
    )


def captioned(anchor: str, label: str, caption: str, spec: Figure) -> FigureView:
    """A figure under its caption."""
    bold, _, reading = caption.partition(": ")
    return FigureView(anchor, label, bold, reading, spec)
