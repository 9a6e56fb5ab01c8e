"""Question: what does the server of a run serve?"""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from moeprof.viewer.perfetto_ui import PLACE
from moeprof.viewer.served import (
    BYTES,
    HTML,
    PAGE_RIGHTS,
    REPORT_RIGHTS,
    SCRIPT,
    STYLE,
    Served,
    Table,
)

REPORT, TIMELINE, TRACE = "report.html", "timeline.html", "run.pftrace"
_NOWHERE, _BESIDE = b'data-viewer=""', f'data-viewer="{PLACE}"'.encode()


def table_of(report: Path, trace: Path | None, viewer: Table) -> Table:
    """A report and, where there is one, a trace with the page that opens it.

    ``viewer`` is Perfetto's pages (`perfetto_ui.installed_pages`), empty where there are none.
    """
    served = {REPORT: Served(report, HTML, REPORT_RIGHTS)}
    if trace is None:
        return served
    page = _page("perfetto.html")
    return {
        **served,
        TRACE: Served(trace, BYTES),
        TIMELINE: Served(page.replace(_NOWHERE, _BESIDE) if viewer else page, HTML, PAGE_RIGHTS),
        "perfetto.css": Served(_page("perfetto.css"), STYLE, PAGE_RIGHTS),
        "perfetto.js": Served(_page("perfetto.js"), SCRIPT, PAGE_RIGHTS),
        **viewer,
    }


def _page(name: str) -> bytes:
    return (importlib.resources.files("moeprof.viewer") / "pages" / name).read_bytes()
