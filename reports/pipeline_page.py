"""Question: how does a pipeline become one HTML file that needs nothing else?"""

from __future__ import annotations

from pathlib import Path

from moeprof.reports.pipeline_page_view import pipeline_page
from moeprof.reports.pipeline_view import PipelineDocument, to_json
from moeprof.reports.templating import rendered, write


def write_page(document: PipelineDocument, out: Path) -> None:
    """Write the page to `out`.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(document), out, "--html")


def render(document: PipelineDocument) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    return rendered("pipeline.html", [to_json(document)], page=pipeline_page(document))
