"""Question: what stands where on the page of one run, or of several side by side?

Turns documents into the values that the templates show; every text is made here or in `words` and
`story`, so that the templates hold markup alone. The page is one HTML file that needs nothing
else: a content security policy forbids every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprof.analyzers.registry import all_drawings, is_question, question
from moeprof.answers import story
from moeprof.answers.bars import Figure
from moeprof.answers.document import Document, is_unrecorded
from moeprof.answers.story import described_interval_parts, described_outside, described_rate
from moeprof.answers.values import printable, written
from moeprof.reports.parts import phrases
from moeprof.reports.parts.templating import rendered, write
from moeprof.reports.parts.views import (
    Check,
    FigureView,
    Segment,
    TableView,
    captioned,
    check_views,
    finding_table,
    parts_table,
    read_first,
    runs_table,
    segments,
    stacked,
)
from moeprof.reports.run import words
from moeprof.reports.run.document import to_json
from moeprof.reports.run.figures import TimelineView, comparison, timeline_view
from moeprof.reports.run.findings import FindingsView, FindingView, top_findings
from moeprof.reports.run.words import comparison_sentence, reason, sentence, told_by_figures
from moeprof.units import format_ns, format_percent

_MOST_PARTS = 7
"""Parts that are named below the bar of the first screen; the breakdown has all."""

_MOST_TROUBLES = 2
"""Warnings that are shown at once; failed checks always are."""


@dataclass(frozen=True)
class SectionView:
    """One question about one run; `docs` is the file that explains it.

    `metrics` are names and values, `unknown` the names of those that have none; `further` are the
    findings past the first screen.
    """

    id: str
    name: str
    title: str
    question: str
    sentence: str
    metrics: tuple[tuple[str, str], ...]
    unknown: str
    further: tuple[FindingView, ...]
    figures: tuple[FigureView, ...]
    timeline: TimelineView | None
    table: TableView
    notes: tuple[str, ...]
    command: str
    docs: str
    is_empty: bool


@dataclass(frozen=True)
class GroupView:
    """Sections that belong together, under one title in the list of sections."""

    title: str
    sections: tuple[SectionView, ...]


@dataclass(frozen=True)
class RunView:
    """One run: the first screen's facts, then its sections.

    `troubles` are the checks that are shown at once, `lesser` further warnings. `largest` are the
    parts that are named below the bar, `smaller` says what the others are together.
    """

    id: str
    label: str
    facts: str
    cores: str
    command: str | None
    problems: tuple[str, ...]
    verdict: str
    trust: str
    troubles: tuple[Check, ...]
    lesser: tuple[Check, ...]
    passed: tuple[Check, ...]
    checked: str
    step: str
    step_detail: str
    rate: str
    step_notes: tuple[str, ...]
    read: tuple[str, ...]
    parts: str
    overlap: str
    unexplained: str
    unknown_parts: str
    segments: tuple[Segment, ...]
    ranked: tuple[Segment, ...]
    largest: tuple[Segment, ...]
    smaller: str
    findings: FindingsView | None
    hints: str
    groups: tuple[GroupView, ...]

    @property
    def sections(self) -> tuple[SectionView, ...]:
        """The sections of all groups, in their order on the page."""
        return tuple(section for group in self.groups for section in group.sections)


@dataclass(frozen=True)
class PageView:
    """The page; `comparison` and `legend` are there where it has several runs."""

    title: str
    lead: str
    runs: tuple[RunView, ...]
    legend: tuple[Segment, ...]
    basis: str
    comparison: Figure | None
    tables: tuple[TableView, ...]
    command: str


def write_page(documents: Sequence[Document], out: Path, option: str = "-o") -> None:
    """Write the report of one run, or of several side by side, to `out`, which ``option`` named.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(documents), out, option)


def render(documents: Sequence[Document]) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    return rendered("page.html", [to_json(d) for d in documents], page=page_view(documents))


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
        lead=comparison_sentence(documents),
        runs=runs,
        legend=stacked(segment for run in runs for segment in run.segments),
        basis=story.basis(*documents),
        comparison=comparison(documents) if several else None,
        tables=(runs_table(documents, labels), parts_table(documents, labels)) if several else (),
        command=phrases.command_line("report", *paths),
    )


def _run(document: Document, label: str, prefix: str, longest_ns: float) -> RunView:
    record = document["run"].get("record")
    ranked = tuple(segments(story.parts(document), longest_ns))
    troubles, passed = (
        check_views(phrases.troubles(document)),
        check_views(phrases.passed(document)),
    )
    is_empty = is_unrecorded(document)  # there is no question that a section could answer
    findings = None if is_empty else top_findings(document, prefix)
    shown = max(_MOST_TROUBLES, sum(check.verdict == "fail" for check in troubles))
    return RunView(
        id=prefix or "run",
        label=label,
        facts=words.described_run(document),
        cores=words.of_cores(document),
        command=printable(record["command"]) if record and record["command"] else None,
        problems=tuple(printable(problem) for problem in words.problems(document)),
        verdict=phrases.worst_verdict(document),
        trust=phrases.described_trust(document),
        troubles=troubles[:shown],
        lesser=troubles[shown:],
        passed=passed,
        checked=_checked(len(troubles[shown:]), len(passed)),
        step=_step(document),
        step_detail=_step_detail(document),
        rate=described_rate(document),
        step_notes=tuple(
            text
            for tell in (described_interval_parts, described_outside)
            if (text := tell(document))
        ),
        read=_read(document),
        parts=story.described_parts(document),
        overlap=words.overlap(document),
        unexplained=_unexplained(document),
        unknown_parts=words.unknown_parts(document),
        segments=stacked(segment for segment in ranked if segment.share),
        ranked=ranked,
        largest=ranked[:_MOST_PARTS] if len(ranked) > _MOST_PARTS + 1 else ranked,
        smaller=_smaller(ranked[_MOST_PARTS:]) if len(ranked) > _MOST_PARTS + 1 else "",
        findings=findings,
        hints=f"{prefix}-hints" if prefix else "hints",
        groups=tuple(
            GroupView(
                title,
                tuple(
                    _section(
                        document,
                        name,
                        f"{prefix}-{name}" if prefix else name,
                        findings.others if findings and name == "hints" else (),
                    )
                    for name in names
                ),
            )
            for title, names in phrases.grouped([] if is_empty else document["analyses"])
        ),
    )


def _step(document: Document) -> str:
    """The mean interval; the length of a step where none is known."""
    interval, time = story.interval(document), story.step_time(document)
    if interval and time:
        return format_ns(interval.mean_ns)
    return format_ns(time.median_ns) if time else "not known"


def _step_detail(document: Document) -> str:
    """How that was taken, and beside an interval the length of a step."""
    spread, time = story.described_spread(document), story.step_time(document)
    if not time or story.interval(document) is None:
        return spread
    return (
        f"start to start, {story.described_interval(document)}; first to last device work "
        f"{format_ns(time.median_ns)}, {spread}"
    )


def _checked(lesser: int, passed: int) -> str:
    """What stands behind the summary of the checks."""
    told = [f"{lesser} more warning{'s' if lesser != 1 else ''}"] if lesser else []
    told += [f"{passed} check{'s' if passed != 1 else ''} passed"] if passed else []
    return ", ".join([*told, "how it was read"]).capitalize()


def _read(document: Document) -> tuple[str, ...]:
    """What was recorded, and how it was read."""
    run = document["run"]
    record = run.get("record")
    window = [f"recorded: {record['window']}"] if record and record["window"] else []
    return tuple(printable(note) for note in [*window, *run["notes"]])


def _smaller(parts: Sequence[Segment]) -> str:
    share = format_percent(sum(part.share for part in parts))
    return f"and {len(parts)} smaller: {share}"


def _whole_ns(document: Document) -> float:
    return sum(part.duration_ns for part in story.parts(document))


def _section(
    document: Document, name: str, anchor: str, further: tuple[FindingView, ...] = ()
) -> SectionView:
    finding = document["analyses"][name]
    answer, said = _answer(document, name)
    drawn = timeline_view(document) if anchor == "timeline" else None  # not of several runs
    beside = (each.name for each in all_drawings() if each.beside == name)
    pictures = (document["drawings"].get(key) for key in beside)
    more = (note for picture in pictures if picture for note in picture["notes"])
    told = finding["notes"][: len(finding["notes"]) - len(said)]
    notes = dict.fromkeys([*said, *(note for note in more if note not in told)])
    # where no sentence is made of them, the headline figures are the sentence
    shown = finding["headline"] if told_by_figures(document, name) else []
    above = question(name).on_first_screen if is_question(name) else ()
    figures = [metric for metric in shown if metric["metric"] not in above]
    return SectionView(
        id=anchor,
        name=name,
        title=phrases.title(name),
        question=finding["question"],
        sentence=answer,
        metrics=tuple(
            (story.metric_name(m), written(m["value"], m["unit"]))
            for m in figures
            if m["value"] is not None
        ),
        unknown=", ".join(story.metric_name(m) for m in figures if m["value"] is None),
        further=further,
        figures=_figures(document, name, anchor, answer),
        timeline=drawn,
        table=finding_table(read_first(name, finding), anchor, phrases.title(name)),
        notes=tuple(printable(note) for note in notes),
        command=phrases.command(document, "analyze", "--only", name),
        docs=f"docs/questions/{name}.md",
        is_empty=not finding["rows"],
    )


def _answer(document: Document, name: str) -> tuple[str, list[str]]:
    """The sentence of a section, and its notes; where there is nothing, the first says why."""
    finding = document["analyses"][name]
    if finding.get("status") == "none" and (why := reason(document, name)):
        return why, finding["notes"][1:]
    return sentence(document, name), finding["notes"]


def _figures(document: Document, name: str, anchor: str, answer: str) -> tuple[FigureView, ...]:
    """The figures of a section that have something to show, the first described by its answer."""
    if phrases.withheld_by(document, name):
        return ()
    figures = question(name).figures if is_question(name) else ()
    drawn = [(figure.caption, figure.draw(document)) for figure in figures]
    return tuple(
        captioned(
            f"{anchor}-{place}" if place else anchor, caption if place else answer, caption, spec
        )
        for place, (caption, spec) in enumerate(drawn)
        if spec is not None
    )


def _unexplained(document: Document) -> str:
    """How the parts are known, what no part explains, and what the user's rules changed."""
    known = (words.named_by(document), words.unexplained(document))
    parts = " · ".join(filter(None, known))
    told = (
        parts[:1].upper() + parts[1:],
        printable(words.with_titles(words.told_of_names(document))),
    )
    return ". ".join(filter(None, told))
