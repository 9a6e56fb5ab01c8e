"""Question: how do documents become one HTML file that needs nothing else?

A content security policy forbids every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeprof.answers.document import Document
from moeprof.reports.document import to_json
from moeprof.reports.pages.run_view import page_view
from moeprof.reports.pages.templating import rendered, write


def write_page(documents: Sequence[Document], out: Path) -> None:
    """Write the report of one run, or of several side by side, to `out`.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(documents), out, "-o")


def render(documents: Sequence[Document]) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    return rendered("page.html", [to_json(d) for d in documents], page=page_view(documents))
