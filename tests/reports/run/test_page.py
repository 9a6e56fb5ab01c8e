from __future__ import annotations

import gzip
import html.parser
import json
import re
from base64 import b64decode
from pathlib import Path

import pytest
from builders.report_cases import breakdown, document, hostile_document, receive_buffers, trace

from moeprof.analyzers.questions.launch import SCHEMA as LAUNCH
from moeprof.errors import MoeprofError
from moeprof.reports.parts.templating import embedded_json
from moeprof.reports.parts.views import MOST_ROWS, read_first
from moeprof.reports.run.document import build
from moeprof.reports.run.page import render, write_page
from moeprof.tables.analysis import Analysis, Metric

SIX_MB = 6_000_000


class Elements(html.parser.HTMLParser):
    """Collects ids, internal links, addresses of resources and the text of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        for name in ("src", "href", "action", "data", "poster"):
            address = found.get(name) or ""
            (self.targets if address.startswith("#") else self.addresses).append(address)
        self._script = found if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))

    def handle_endtag(self, tag: str) -> None:
        self._script = None


@pytest.fixture(scope="module")
def compared() -> str:
    return render([document("runs/a"), document("runs/b", scale=0.5)])


def test_the_embedded_documents_are_what_analyze_prints():
    made = [document("runs/a"), hostile_document()]
    embedded = [
        json.loads(text)
        for attributes, text in Elements(render(made)).scripts
        if attributes.get("class") == "document"
    ]
    assert embedded == made


def test_nothing_refers_to_the_network(compared):
    addresses = {address for address in Elements(compared).addresses if address}
    assert addresses == {"data:,"}
    assert "default-src 'none'" in compared
    assert not re.search(r"https?://", compared)
    assert "@import" not in compared


def test_two_runs_fit_the_size_budget(compared):
    assert len(compared.encode()) < SIX_MB


def test_plotly_is_embedded_once_and_whole(compared):
    (packed,) = (t for a, t in Elements(compared).scripts if a.get("id") == "plotly")
    assert b"plotly.js v" in gzip.decompress(b64decode(packed))[:200]
    assert compared.count(packed) == 1


def test_ids_are_unique_and_every_link_has_its_target(compared):
    found = Elements(compared)
    assert len(set(found.ids)) == len(found.ids)
    assert {target.removeprefix("#") for target in found.targets if target} <= set(found.ids)


def test_the_same_documents_give_the_same_bytes():
    assert render([document()]) == render([document()])


def test_script_ends_and_line_separators_are_escaped_in_json():
    text = embedded_json("</script><!--\u2028&")
    assert text == '"\\u003c/script\\u003e\\u003c!--\\u2028\\u0026"'
    assert json.loads(text) == "</script><!--\u2028&"


def test_hostile_names_open_no_element():
    page = render([hostile_document()])
    assert "<script>window.hacked" not in page
    assert "<b>bold" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_rows_past_the_limit_are_counted():
    rows = [(f"op.{n}", 1, 1.0) for n in range(MOST_ROWS + 7)]
    page = render([build(trace(), {"receive_buffers": receive_buffers(*rows)})])
    assert "7 more rows are not shown here" in page


def test_a_finding_without_rows_says_so():
    page = render([build(trace(), {"breakdown": breakdown({})})])
    assert "None in this trace." in page


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    out = tmp_path / "absent" / "report.html"
    with pytest.raises(MoeprofError, match="No such file or directory"):
        write_page([document()], out)


def test_the_first_screen_says_which_session_was_read_and_what_is_unexplained():
    page = render([document()])
    hero = page[page.index('<section class="hero"') : page.index("</section>")]
    assert "session read: s1" in hero
    assert "Unattributed 2.0 % · other 0.0 %" in hero


def test_a_section_of_nothing_says_once_why():
    why = "none in this trace: no kernels of a GPU, so no launches"
    launch = Analysis(
        "launch", "Does launching keep up?", (Metric("queue_depth_median", None, ""),), LAUNCH,
        LAUNCH.frame(), (why,), status="none", why=why,
    )  # fmt: skip
    page = render([build(trace(), {"launch": launch})])
    shown = page[page.index('<section class="question" id="launch"') : page.index("<footer>")]
    assert "None in this trace: no kernels of a GPU, so no launches." in shown
    assert shown.lower().count("none in this trace") == 1
    assert "Not known" not in shown


def test_the_times_of_operations_are_seen_without_scrolling():
    names = ("op", "module", "component", "phase", "per_step_ns", "share", "calls", "source")
    columns = [{"name": name, "kind": "text", "unit": "", "meaning": ""} for name in names]
    finding = {"question": "", "headline": [], "columns": columns, "rows": [], "notes": []}
    assert [column["name"] for column in read_first("ops", finding)["columns"]] == [
        *("op", "component", "per_step_ns", "share", "source", "module", "phase", "calls")
    ]
    assert read_first("breakdown", finding)["columns"] == columns
