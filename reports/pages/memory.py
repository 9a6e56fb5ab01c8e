"""Question: how does a memory projection become one HTML file that needs nothing else?"""

from __future__ import annotations

from pathlib import Path

from moeprof.reports.memory_document import MemoryDocument, to_json
from moeprof.reports.pages.memory_view import memory_view
from moeprof.reports.pages.templating import rendered, write


def write_page(document: MemoryDocument, out: Path) -> None:
    """Write the page to `out`.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(document), out, "--html")


def render(document: MemoryDocument) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    return rendered("memory.html", [to_json(document)], page=memory_view(document))
