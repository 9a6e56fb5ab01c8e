"""Question: how do several runs look beside each other, and what draws the timeline of one step?

The pieces of a timeline stay in the embedded document; here are only colours, patterns and texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeprof.analyzers.questions.breakdown import phase_bars, phase_keys, phases
from moeprof.answers import story
from moeprof.answers.bars import Figure, horizontal
from moeprof.answers.colours import HATCHED, PHASES, colour, in_order, ink_on
from moeprof.answers.document import Document, Drawing, Value, figures_of
from moeprof.answers.values import number
from moeprof.units import format_count, format_ns

DRAWING = "one_step"
SECTION = "timeline"


@dataclass(frozen=True)
class Part:
    """A component in the legend."""

    component: str
    name: str
    colour: str
    is_hatched: bool


@dataclass(frozen=True)
class TimelineView:
    """A timeline; `style` is what its script reads, ``label`` is for those who do not see it."""

    id: str
    table: str
    title: str
    sentence: str
    label: str
    parts: tuple[Part, ...]
    phases: tuple[str, ...]
    has_order: bool
    has_waits: bool
    span: str
    held: str
    notes: tuple[str, ...]
    style: Mapping[str, object]


def comparison(documents: Sequence[Document]) -> Figure | None:
    """One bar per run: its phases one after the other, each by component; milliseconds."""
    runs = [story.phase_totals(document) for document in documents]
    components = in_order(component for run in runs for component, _phase in run)
    found = phases(key for run in runs for key in run)
    bars = [
        phase_bars(component, phase, durations_ns)
        for phase in found
        for component in components
        if (durations_ns := _by_place(runs, (component, phase)))
    ]
    if not bars:
        return None
    return horizontal(
        [*bars, *phase_keys(found)], story.run_labels(documents), f"ms {story.basis(*documents)}"
    )


def _by_place(
    runs: Sequence[Mapping[tuple[str, str], float]], key: tuple[str, str]
) -> dict[int, float]:
    return {place: run[key] for place, run in enumerate(runs) if key in run}


def timeline_view(document: Document) -> TimelineView | None:
    """The timeline of the document's drawing; None where there is nothing to draw.

    It stands in the section `SECTION` of the page of one run.
    """
    drawing = document["drawings"].get(DRAWING)
    if drawing is None or not drawing["data"]["start_ns"]:
        return None
    known = figures_of(drawing)
    parts = tuple(
        Part(name, story.label(name), colour(name), name in HATCHED)
        for name in in_order(_names(drawing, "component"))
    )
    found = set(_names(drawing, "phase"))
    waits = drawing["data"]["wait_ns"]
    return TimelineView(
        id=f"{SECTION}-step",
        table=f"{SECTION}-table",
        title=_title(known),
        sentence=_sentence(known),
        label=f"Timeline. {_title(known)}: {_sentence(known)}",
        parts=parts,
        phases=tuple(phase for phase in PHASES if phase in found),
        has_order=int(number(known["devices"])) > 1,
        span=_span(known),
        held=_held(known),
        notes=tuple(drawing["notes"]),
        has_waits=isinstance(waits, list) and any(_is_positive(value) for value in waits),
        style={
            "section": SECTION,
            "span": _span(known),
            "components": {
                part.component: {
                    "name": part.name,
                    "colour": part.colour,
                    "ink": ink_on(part.colour),
                    "isHatched": part.is_hatched,
                }
                for part in parts
            },
            "phases": dict(PHASES),
        },
    )


def _names(drawing: Drawing, column: str) -> Sequence[str]:
    labels = drawing["data"][column]
    return labels["names"] if isinstance(labels, dict) else ()


def _title(known: Mapping[str, Value]) -> str:
    if known["step"] is None:
        return "The whole capture"
    return f"Step {known['step']}, the one nearest to the median, piece by piece"


def _span(known: Mapping[str, Value]) -> str:
    """What all of the picture is called."""
    return "capture" if known["step"] is None else "step"


def _held(known: Mapping[str, Value]) -> str:
    """What the document holds of the pieces, and how those that were merged are found."""
    if known["pieces_drawn"] == known["pieces_of_work"]:
        return "Every piece is in the embedded JSON."
    return (
        "The embedded JSON holds the pieces as they are drawn: what was merged is found by the op "
        "that it is named after, and by no other."
    )


def _sentence(known: Mapping[str, Value]) -> str:
    """How much there is to see, and what was merged to show it."""
    devices, pieces, drawn = (
        int(number(known[name])) for name in ("devices", "pieces_of_work", "pieces_drawn")
    )
    where = f"{format_count(devices)} device{'s' if devices != 1 else ''}"
    work = f"{format_count(pieces)} piece{'s' if pieces != 1 else ''} of work"
    said = f"{format_ns(number(known['duration']))} on {where}: {work}"
    if drawn == pieces:
        return f"{said}, each drawn."
    return (
        f"{said}, drawn as {format_count(drawn)}. Pieces shorter than "
        f"{format_ns(number(known['resolution']))} are merged with their "
        "neighbours; the height of what is merged is the part of its time in which work runs."
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
