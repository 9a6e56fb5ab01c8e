"""Question: which pieces do several pages have: a run's parts, its checks, a figure?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moeprof.answers import story
from moeprof.answers.bars import Figure
from moeprof.answers.colours import HATCHED, colour, in_order
from moeprof.answers.document import TrustInfo
from moeprof.answers.names import printable
from moeprof.units import format_ns, format_percent

_MARKS = {"ok": "✓", "warn": "!", "fail": "✗", "unchecked": "?"}


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
