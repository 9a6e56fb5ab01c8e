"""Question: how does the difference of two runs become one HTML file that needs nothing else?"""

from __future__ import annotations

from pathlib import Path

from moeprof.reports.comparison_document import ComparisonDocument, comparison_json
from moeprof.reports.pages.comparison_view import comparison_view
from moeprof.reports.pages.templating import rendered, write


def write_page(document: ComparisonDocument, out: Path) -> None:
    """Write the page to `out`.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(document), out, "--html")


def render(document: ComparisonDocument) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    page = comparison_view(document)
    return rendered("comparison.html", [comparison_json(document)], page=page)
