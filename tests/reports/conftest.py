"""Golden files, and pages in a real browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from trace_processor import Engine, started

from moeprof.answers.document import Document
from moeprof.reports.run.page import render

GOLDEN = Path(__file__).parent.parent / "golden"
CHROMIUM_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Write the golden files of tests/reports."
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/<name>, or write it there under --update-golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare


@dataclass
class Visit:
    """A page that was opened without a network, and all that it said and asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium. Without one the tests fail: a report nobody opened is not tested."""
    path = os.environ.get("CHROMIUM") or which("chromium") or which("chromium-browser")
    if path is None:
        pytest.fail(
            "the browser tests need Chromium: apt-get install chromium, or set CHROMIUM to its path"
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS.split())
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def open_once(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Page]]:
    """Open the text of a page for all tests of a file: it takes as long as most of them."""
    contexts = []

    def opened(html: str) -> Page:
        out = tmp_path_factory.mktemp("page") / "page.html"
        out.write_text(html, encoding="utf-8")
        context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.goto(out.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def open_html(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Open the text of a page from disk, offline."""
    contexts = []

    def opened(
        html: str, width: int = 1400, scheme: str = "light", is_drawn: bool = False
    ) -> Visit:
        out = tmp_path / f"page-{len(contexts)}.html"
        out.write_text(html, encoding="utf-8")
        context = browser.new_context(
            offline=True,
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        contexts.append(context)
        visited = Visit(context.new_page())
        visited.page.on("console", lambda message: visited.complaints.append(message.text))
        visited.page.on("pageerror", lambda error: visited.complaints.append(str(error)))
        visited.page.on("request", lambda request: visited.requests.append(request.url))
        visited.page.goto(out.as_uri())
        if is_drawn:
            visited.page.evaluate("figures.drawAll()")
        return visited

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def visit(open_html: Callable[..., Visit]) -> Callable[..., Visit]:
    """Open the page of some documents."""

    def open_page(
        *documents: Document, width: int = 1400, scheme: str = "light", is_drawn: bool = False
    ) -> Visit:
        return open_html(render(documents), width, scheme, is_drawn)

    return open_page


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Perfetto's trace processor; each test loads a trace of its own."""
    with started() as found:
        yield found
