"""Question: which findings matter most, and what does a reader do about them?

Drawn from the hints of a document: what each saves is the most that it can save, and two of them
may save the same time, so they stand in the order of the document and are never added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeprof.analyzers.registry import all_patterns
from moeprof.answers import story
from moeprof.answers.document import Document, Value, headline, rows
from moeprof.answers.values import printable
from moeprof.reports.parts import phrases
from moeprof.units import format_bytes, format_ns, format_percent

MOST = 3
"""Findings on the first screen; the section has all of them."""


@dataclass(frozen=True)
class FindingView:
    """One finding. `saved` are its gains, each "at most"; `share` is that of the step's time.

    `anchor` and `look` are the section with the details; empty where the page has none.
    """

    key: str
    title: str
    saved: tuple[tuple[str, str], ...]
    share: float
    evidence: str
    change: str
    anchor: str
    look: str
    source: str


@dataclass(frozen=True)
class FindingsView:
    """The first findings, the names and gains of the others, and a sentence about all."""

    said: str
    first: tuple[FindingView, ...]
    others: tuple[FindingView, ...]


def top_findings(document: Document, prefix: str = "") -> FindingsView | None:
    """The findings of a run in the order of its hints; None where hints were not asked for.

    Args:
        document: the findings.
        prefix: what the anchors of this run's sections begin with.
    """
    if "hints" not in document["analyses"]:
        return None
    if failed := phrases.withheld_by(document, "hints"):
        return FindingsView(f"Withheld: {' and '.join(map(printable, failed))} failed.", (), ())
    peak = headline(document, "memory").get("program_peak")
    size = float(peak) if isinstance(peak, int | float) else 0.0
    hints = rows(document, "hints")
    found = tuple(_finding(hint, document, prefix, size) for hint in hints)
    return FindingsView(_said(document, len(found)), found[:MOST], found[MOST:])


def plain_title(name: str) -> str:
    """A pattern as a sentence; one that is not known here, as of another version, by its name."""
    titles = {each.name: each.title for each in all_patterns()}
    return titles.get(name) or _sentence(story.label(name))


def _share_of_step(hint: Mapping[str, Value]) -> float:
    """What it saves of the step's time, 0 to 1; 0 where that is not known."""
    share = hint["gain_share"]
    return min(float(share), 1.0) if isinstance(share, int | float) else 0.0


def _finding(
    hint: Mapping[str, Value], document: Document, prefix: str, peak_bytes: float
) -> FindingView:
    look = str(hint["look"])
    is_there = look in document["analyses"]
    return FindingView(
        key=str(hint["hint"]),
        title=plain_title(str(hint["hint"])),
        saved=_saved(hint, peak_bytes),
        share=_share_of_step(hint),
        evidence=_sentence(str(hint["evidence"])),
        change=_with_titles(_sentence(str(hint["change"])), document),
        anchor=(f"{prefix}-{look}" if prefix else look) if is_there else "",
        look=phrases.title(look) if is_there else "",
        source=printable(str(hint["source"] or "")),
    )


def _saved(hint: Mapping[str, Value], peak_bytes: float) -> tuple[tuple[str, str], ...]:
    """Each gain with what it is a share of."""
    found = []
    if isinstance(gain_ns := hint["gain_ns"], int | float):
        share = hint["gain_share"]
        is_known = isinstance(share, int | float)
        found.append(
            (
                format_ns(gain_ns),
                f"a step, {format_percent(float(share))}"
                if is_known and share is not None
                else "in the capture",
            )
        )
    if isinstance(size := hint["gain_bytes"], int | float):
        is_part = 0 < size <= peak_bytes
        of_peak = f", {format_percent(size / peak_bytes)} of its peak" if is_part else ""
        found.append((format_bytes(size), f"a device{of_peak}"))
    return tuple(found)


def _sentence(text: str) -> str:
    return printable(text[:1].upper() + text[1:])


def _with_titles(text: str, document: Document) -> str:
    """``(expert_load)`` names a question of the command line; a page knows it by its title."""
    for name in document["analyses"]:
        text = text.replace(f"({name})", f"(see “{phrases.title(name)}”)")
    return text


def _said(document: Document, count: int) -> str:
    """How many findings there are, or what was looked for where there is none."""
    if count > MOST:
        return (
            f"The first {MOST} of {count} findings, by time, then memory. What each saves is the "
            "most it can save; they overlap, so do not add them up."
        )
    if count:
        are = f"{count} findings are" if count > 1 else "1 finding is"
        return (
            f"{are} all that the known patterns show here. What each saves is the most it can "
            "save; they overlap, so do not add them up."
        )
    looked = f" Looked for: {'; '.join(each.title for each in all_patterns())}."
    has_work = bool(story.parts(document)) or "breakdown" not in document["analyses"]
    shown = "in this run" if has_work else "in this run, of which no device work can be used"
    return f"No known pattern shows {shown}.{looked}"
