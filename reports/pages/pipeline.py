"""Question: how does a pipeline become one HTML file that needs nothing else?

The page carries the document that ``--json`` prints. Pieces of work beyond `MOST_PIECES` it leaves
to that, and says so: what it draws of them has its own, bounded rows.
"""

from __future__ import annotations

from pathlib import Path

from moeprof.answers.document import Finding
from moeprof.reports.pages.pipeline_view import pipeline_page
from moeprof.reports.pages.templating import rendered, write
from moeprof.reports.pipeline_document import PipelineDocument, Shown, to_json

MOST_PIECES = 50_000


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
