"""Question: what stands where on the page?

Turns documents into the values that the templates show; every text is made here or in `story`,
so that the templates hold markup alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeprof.reports import story
from moeprof.reports.bars import Figure
from moeprof.reports.components import HATCHED, colour, in_order
from moeprof.reports.document import Document, Finding, TrustInfo, Value
from moeprof.reports.figures import FIGURES, comparison
from moeprof.reports.names import printable, shortened
from moeprof.reports.values import cell_text, heading, written
from moeprof.units import format_ns, format_percent

MOST_ROWS = 1000
_CELL_WIDTH = 72
# The step column of the runs' table says these already.
_IN_STEP = ("step_time_median", "step_time_min", "step_time_max")
_MARKS = {"ok": "✓", "warn": "!", "fail": "✗", "unchecked": "?"}


@dataclass(frozen=True)
class Cell:
    """One cell: the text shown, the whole text where it was cut, and the value to sort by."""

    text: str
    value: Value
    whole: str | None = None
    bar: float | None = None


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
class SectionView:
    """One question about one run."""

    id: str
    name: str
    title: str
    question: str
    sentence: str
    metrics: tuple[tuple[str, str], ...]
    figure: Figure | None
    table: TableView
    notes: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class RunView:
    """One run: the first screen's facts, then its sections."""

    id: str
    label: str
    path: str
    facts: str
    command: str | None
    window: str | None
    problems: tuple[str, ...]
    verdict: str
    trust: str
    troubles: tuple[Check, ...]
    passed: tuple[Check, ...]
    step: str
    step_detail: str
    parts: str
    segments: tuple[Segment, ...]
    ranked: tuple[Segment, ...]
    sections: tuple[SectionView, ...]


@dataclass(frozen=True)
class PageView:
    """The page; `comparison` and `legend` are there where it has several runs."""

    title: str
    lead: str
    runs: tuple[RunView, ...]
    legend: tuple[Segment, ...]
    comparison: Figure | None
    tables: tuple[TableView, ...]
    command: str


def page_view(documents: Sequence[Document]) -> PageView:
    """Lay out one run, or several side by side on one scale."""
    labels = story.run_labels(documents)
    longest_ns = max((_whole_ns(document) for document in documents), default=0.0)
    runs = tuple(
        _run(document, label, f"r{place}" if len(documents) > 1 else "", longest_ns)
        for place, (document, label) in enumerate(zip(documents, labels, strict=True), start=1)
    )
    paths = [document["run"]["path"] for document in documents]
    several = len(documents) > 1
    return PageView(
        title=f"{len(documents)} runs compared" if several else labels[0],
        lead=story.comparison_sentence(documents),
        runs=runs,
        legend=_legend(runs),
        comparison=comparison(documents) if several else None,
        tables=(_runs_table(documents, labels), _parts_table(documents, labels)) if several else (),
        command=story.command_line("report", *paths),
    )


def _run(document: Document, label: str, prefix: str, longest_ns: float) -> RunView:
    record = document["run"].get("record")
    time = story.step_time(document)
    segments = {segment.component: segment for segment in _segments(document, longest_ns)}
    return RunView(
        id=prefix or "run",
        label=label,
        path=printable(document["run"]["path"]),
        facts=story.described_run(document),
        command=printable(record["command"]) if record and record["command"] else None,
        window=printable(record["window"]) if record and record["window"] else None,
        problems=tuple(printable(problem) for problem in story.problems(document)),
        verdict=story.worst_verdict(document),
        trust=story.described_trust(document),
        troubles=_checks(story.troubles(document)),
        passed=_checks(story.passed(document)),
        step=format_ns(time.median_ns) if time else "not known",
        step_detail=story.described_spread(document),
        parts=story.described_parts(document),
        segments=tuple(segments[name] for name in in_order(segments)),
        ranked=tuple(segments.values()),
        sections=tuple(
            _section(document, name, f"{prefix}-{name}" if prefix else name)
            for name in document["analyses"]
        ),
    )


def _checks(found: Sequence[TrustInfo]) -> tuple[Check, ...]:
    return tuple(
        Check(printable(t["check"]), t["verdict"], _MARKS[t["verdict"]], printable(t["detail"]))
        for t in found
    )


def _segments(document: Document, longest_ns: float) -> list[Segment]:
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
        for part in story.parts(document)
    ]


def _whole_ns(document: Document) -> float:
    return sum(part.duration_ns for part in story.parts(document))


def _legend(runs: Sequence[RunView]) -> tuple[Segment, ...]:
    """Every component of any run once, in the order of the bars."""
    known = {segment.component: segment for run in runs for segment in run.segments}
    return tuple(known[name] for name in in_order(known))


def _section(document: Document, name: str, anchor: str) -> SectionView:
    finding = document["analyses"][name]
    draw = FIGURES.get(name)
    return SectionView(
        id=anchor,
        name=name,
        title=story.title(name),
        question=finding["question"],
        sentence=story.sentence(document, name),
        metrics=tuple(
            (story.metric_name(m), written(m["value"], m["unit"]))
            for m in finding["headline"]
            if name in story.SENTENCES
        ),
        figure=draw(document) if draw else None,
        table=_table(finding, anchor, story.title(name)),
        notes=tuple(printable(note) for note in finding["notes"]),
        command=story.command(document, "analyze", "--only", name),
    )


def _table(finding: Finding, anchor: str, caption: str) -> TableView:
    rows = finding["rows"][:MOST_ROWS]
    columns = tuple(
        Column(
            heading(c["name"], c["unit"]),
            c["meaning"],
            story.numbers([row[c["name"]] for row in rows]),
        )
        for c in finding["columns"]
    )
    cells = tuple(
        tuple(cell(row[c["name"]], c["unit"], c["name"]) for c in finding["columns"])
        for row in rows
    )
    return TableView(f"{anchor}-table", caption, columns, cells, len(finding["rows"]) - len(rows))


def cell(value: Value, unit: str = "", name: str = "") -> Cell:
    """A value as a cell: long text is cut in its middle and kept whole beside it."""
    whole = cell_text(value, name, unit)
    text = shortened(whole, _CELL_WIDTH)
    return Cell(text, value, None if text == whole else whole)


def _runs_table(documents: Sequence[Document], labels: Sequence[str]) -> TableView:
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
            cell(story.worst_verdict(document)),
        )
        for document, label in zip(documents, labels, strict=True)
    )
    return TableView("runs-table", "The runs", columns, rows)


def _parts_table(documents: Sequence[Document], labels: Sequence[str]) -> TableView:
    """One row per component, one column per run; bars on one scale."""
    runs = [{part.component: part for part in story.parts(document)} for document in documents]
    named = in_order(name for run in runs for name in run)
    totals = {name: sum(run[name].duration_ns for run in runs if name in run) for name in named}
    longest_ns = max((part.duration_ns for run in runs for part in run.values()), default=0.0)
    rows = tuple(
        (cell(story.label(name)), *(_part_cell(run.get(name), longest_ns) for run in runs))
        for name in sorted(totals, key=lambda name: -totals[name])
    )
    columns = (
        Column("component", "part of the model or of the runtime", False),
        *(Column(label, "device time per step", True) for label in labels),
    )
    return TableView("parts-table", "Time per step of each component", columns, rows)


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
