"""Question: what stands where on the page of a pipeline, one HTML file on its own?

First the answer in a sentence, then each pipeline as stages over time. Schedules that are compared
are drawn on one scale of time, the shortest first. The page carries the document that ``--json``
prints; pieces of work beyond `MOST_PIECES` it leaves to that, and says so: what it draws of them
has its own, bounded rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprof.analyzers.figures.stage_grid import GRID, grid_figure
from moeprof.answers.bars import Bars, Figure, Fill, horizontal
from moeprof.answers.document import Finding, Value, figures_of
from moeprof.answers.values import number, printable, shortened, written
from moeprof.reports.parts import phrases
from moeprof.reports.parts.templating import rendered, write
from moeprof.reports.parts.views import FigureView, TableView, captioned, finding_table
from moeprof.reports.pipeline.document import PipelineDocument, Planned, Shown, to_json, verdict
from moeprof.units import format_percent

_CAUSES = {
    "fill_share": ("to fill and drain", Fill("#0a6fb5")),
    "imbalance_share": ("as stages are unequal", Fill("#dd6a1f", "/")),
    "wait_share": ("in transfers and waits", Fill("#009e73", "x")),
}
_METRICS = {
    "bubble_share": "idle (bubble)",
    "schedule_share": "by the schedule",
    "fill_share": "to fill and drain",
    "imbalance_share": "unequal stages",
    "wait_share": "transfers and waits",
    "iteration_time": "iteration",
}
_LEAST_SHOWN = 0.0005
"""A cause that is below 0.1 %, rounded, everywhere has no entry in the legend."""
MOST_PIECES = 50_000


@dataclass(frozen=True)
class Part:
    """One section: a pipeline over time, or the schedules side by side."""

    id: str
    title: str
    asked: str
    sentence: str
    metrics: tuple[tuple[str, str], ...]
    figure: FigureView | None
    table: TableView | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PipelinePage:
    """The page, top to bottom."""

    title: str
    facts: tuple[str, ...]
    verdict: str
    parts: tuple[Part, ...]
    command: str


def write_page(document: PipelineDocument, out: Path) -> None:
    """Write the page to `out`.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(document), out, "--html")


def render(document: PipelineDocument) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    carried = bounded(document)
    return rendered("pipeline.html", [to_json(carried)], page=pipeline_page(carried))


def bounded(document: PipelineDocument) -> PipelineDocument:
    """`document` without the pieces of work of a pipeline that has too many of them."""
    return {
        **document,
        "projected": _bounded(document["projected"]),
        "measured": _bounded(document["measured"]),
    }


def _bounded(part: Shown | None) -> Shown | None:
    if part is None or len(part["work"]) <= MOST_PIECES:
        return part
    told = (
        f"{len(part['work']):,} pieces of work are not in the page's JSON; moeprof pipeline --json "
        "has them"
    )
    finding: Finding = {**part["finding"], "notes": [*part["finding"]["notes"], told]}
    return {**part, "work": [], "finding": finding}


def pipeline_page(document: PipelineDocument) -> PipelinePage:
    """All that the template shows."""
    named = (("projected", document["projected"]), ("measured", document["measured"]))
    shown = [(name, part) for name, part in named if part is not None]
    parts: list[Part] = []
    if "schedules" in document:
        parts += _schedules(document["schedules"], document.get("planned", {}))
    parts += [_pipeline(name, part) for name, part in shown]
    compared = [("schedules", document["schedules"])] if "schedules" in document else []
    return PipelinePage(
        title=_title(document),
        facts=tuple(
            f"{name.capitalize()}: {shortened(printable(part['source']), 120)}"
            for name, part in [*compared, *shown]
        ),
        verdict=_both(document) or parts[0].sentence,
        parts=tuple(parts),
        command=phrases.command_line(
            "pipeline", *document.get("arguments", []), "--html", "pipeline.html"
        ),
    )


def _both(document: PipelineDocument) -> str:
    """Measured beside projected; empty where one of them is missing."""
    told = [
        f"idle {written(head['bubble_share'], 'share')} of {written(head['iteration_time'], 'ns')}"
        for part in (document["measured"], document["projected"])
        if part is not None and (head := figures_of(part["finding"]))
    ]
    return f"Measured, stages {told[0]}; projected, {told[1]}." if len(told) == 2 else ""


def _title(document: PipelineDocument) -> str:
    if "schedules" in document:
        first = next(iter(document.get("planned", {}).values()), None)
        shape = f", {_shape(first['finding'])}" if first else ""
        return f"Pipeline schedules{shape}"
    part = document["projected"] or document["measured"]
    figures = figures_of(part["finding"]) if part else {}
    if part is None or not figures:
        return "Pipeline"
    return f"Pipeline: {written(figures['schedule'], '')}, {_shape(part['finding'])}"


def _shape(finding: Finding) -> str:
    figures = figures_of(finding)
    return f"{figures['stages']} stages, {figures['microbatches']} microbatches"


def _pipeline(name: str, part: Shown) -> Part:
    finding = part["finding"]
    rows = finding["rows"]
    grid = part.get("grid")
    said = verdict(finding) if rows else "None found: the notes say why."
    return Part(
        id=name,
        title=name.capitalize(),
        asked=finding["question"],
        sentence=said,
        metrics=_metrics(finding) if rows else (),
        figure=_figure(
            name, f"{name.capitalize()}: {said}", GRID, grid_figure(grid, rows) if grid else None
        ),
        table=finding_table(finding, name, f"Stages of the {name} pipeline") if rows else None,
        notes=_notes(finding, grid["notes"] if grid else ()),
    )


def _schedules(part: Shown, planned: Mapping[str, Planned]) -> list[Part]:
    """The table and the bubbles of all schedules, then each of them over time."""
    finding = part["finding"]
    rows = {str(row["schedule"]): row for row in finding["rows"]}
    longest_ns = max((number(row["iteration_ns"]) for row in rows.values()), default=0.0)
    title, said = "Schedules side by side", _comparison(finding)
    caption = "Idle by cause: Share of the iteration, mean over the stages."
    whole = Part(
        id="schedules",
        title=title,
        asked=finding["question"],
        sentence=said,
        metrics=(),
        figure=_figure("schedules", f"{title}: {said}", caption, _bubbles(planned)),
        table=finding_table(finding, "schedules", "Schedules"),
        notes=_notes(finding),
    )
    drawn = [name for name in rows if name in planned]
    parts = [
        _schedule(name, planned[name], rows[name], longest_ns, "" if place else GRID)
        for place, name in enumerate(drawn)  # how to read it stands above the first alone
    ]
    return [whole, *parts]


def _schedule(
    name: str, found: Planned, row: Mapping[str, Value], longest_ns: float, caption: str
) -> Part:
    """One of the schedules, on the scale of time of all."""
    held = row["in_flight"]
    holds = f" Its worst stage holds {written(held, '')} microbatches." if held is not None else ""
    anchor = f"schedule-{name}"
    idle = written(row["bubble_share"], "share")
    said = f"{written(row['iteration_ns'], 'ns')}, of which stages idle {idle}.{holds}"
    spec = grid_figure(found["grid"], found["finding"]["rows"], longest_ns)
    return Part(
        id=anchor,
        title=name,
        asked="",
        sentence=said,
        metrics=(),
        figure=_figure(anchor, f"{name}: {said}", caption, spec),
        table=None,
        notes=_notes(None, found["grid"]["notes"]),
    )


def _figure(anchor: str, label: str, caption: str, spec: Figure | None) -> FigureView | None:
    return captioned(anchor, label, caption, spec) if spec else None


def _comparison(finding: Finding) -> str:
    figures = figures_of(finding)
    text = (
        f"{written(figures['shortest'], '')} has the shortest iteration: "
        f"{written(figures['iteration_time'], 'ns')}."
    )
    if figures["holds_least"] is None:
        return text
    return (
        f"{text} {written(figures['holds_least'], '')} holds the fewest activations: "
        f"{written(figures['least_held'], '')} microbatches on its worst stage."
    )


def _bubbles(planned: Mapping[str, Planned]) -> Figure | None:
    """One bar per schedule: idle of the iteration by cause, percent."""
    if not planned:
        return None
    heads = [figures_of(found["finding"]) for found in planned.values()]
    bars = []
    for cause, (name, fill) in _CAUSES.items():
        shares = [number(head[cause]) for head in heads]
        if max(shares) >= _LEAST_SHOWN:
            texts = [format_percent(share) for share in shares]
            lengths = [100 * share for share in shares]
            bars.append(Bars(name, fill, range(len(shares)), lengths, texts, name, True))
    return horizontal(bars, list(planned), "% of the iteration, idle") if bars else None


def _metrics(finding: Finding) -> tuple[tuple[str, str], ...]:
    units = {m["metric"]: m["unit"] for m in finding["headline"]}
    figures = figures_of(finding)
    return tuple((label, written(figures[n], units[n])) for n, label in _METRICS.items())


def _notes(finding: Finding | None, more: Sequence[str] = ()) -> tuple[str, ...]:
    said = [*(finding["notes"] if finding else ()), *more]
    return tuple(printable(note) for note in said)
