"""The page of `moeprof pipeline --html`."""

from __future__ import annotations

import json

import pytest
from accessibility import violations
from click.testing import CliRunner

from moeprof.cli.main import group
from moeprof.reports.pipeline import page as page_file
from moeprof.reports.pipeline.page import pipeline_page, render
from moeprof.specs.schedule import SCHEDULES

SHAPE = ("--stages", "4", "--microbatches", "8")


def run(*arguments: object):
    return CliRunner().invoke(group, ["pipeline", *map(str, arguments)])


def document_of(*arguments: object):
    return json.loads(run(*arguments, "--json").stdout, parse_constant=pytest.fail)


def test_the_page_holds_what_json_prints(tmp_path, open_html):
    out = tmp_path / "pipeline.html"
    asked = (*SHAPE, "--schedule", "zb-h1", "--head-ms", "0.3", "--stage-ms", "1,1,1,1.25")
    done = run(*asked, "--html", out, "--json")
    assert (done.exit_code, done.stderr) == (0, f"moeprof: page written to {out}\n")
    document = json.loads(done.stdout)
    assert document == document_of(*asked)
    assert document["arguments"] == [
        *SHAPE, "--schedule", "zb-h1", "--stage-ms", "1,1,1,1.25", "--head-ms", "0.3",
    ]  # fmt: skip
    visited = open_html(out.read_text(), is_drawn=True)
    page = visited.page
    assert (visited.complaints, visited.requests) == ([], [page.url])
    embedded = page.evaluate("JSON.parse(document.querySelector('script.document').textContent)")
    assert embedded == document
    assert page.inner_text("h1") == "Pipeline: zb-h1, 4 stages, 8 microbatches"
    assert "zb-h1: 4 stages, 8 microbatches" in page.inner_text(".trust")
    bars = page.locator("#projected-figure .barlayer .point path")
    assert bars.count() == len(document["projected"]["grid"]["data"]["stage"])
    assert page.inner_text("footer code >> nth=0").startswith("moeprof pipeline --stages 4")


def test_schedules_are_drawn_on_one_scale(open_html):
    shape = ("--stages", "2", "--microbatches", "4")
    document = document_of(*shape, "--schedule", "all", "--activation-gib", "2")
    order = [row["schedule"] for row in document["schedules"]["finding"]["rows"]]
    assert list(document["planned"]) == order
    visited = open_html(render(document), width=420, scheme="dark", is_drawn=True)
    page = visited.page
    assert visited.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    titles = page.eval_on_selector_all("h2", "all => all.map(h => h.firstChild.textContent.trim())")
    assert titles == ["Schedules side by side", *order]
    assert set(order) == set(SCHEDULES)
    ends = page.evaluate(
        "[...document.querySelectorAll('[id^=schedule-] figure')].map(f => f.layout.xaxis.range[1])"
    )
    assert ends == [5.0] * len(order)  # gpipe: 4 + 1 microbatches of 1 ms
    assert violations(page) == []


def test_bubbles_by_cause_add_up_to_the_bubble():
    document = document_of(*SHAPE, "--schedule", "all", "--head-ms", "0.3", "--p2p-ms", "0.1")
    for row in document["schedules"]["finding"]["rows"]:
        head = {
            m["metric"]: m["value"]
            for m in document["planned"][row["schedule"]]["finding"]["headline"]
        }
        parts = sum(head[f"{cause}_share"] for cause in ("fill", "imbalance", "wait"))
        assert parts == pytest.approx(row["bubble_share"])


def test_measured_stands_beside_projected():
    document = document_of(*SHAPE)
    document["measured"] = document_of(*SHAPE, "--schedule", "zb-h1")["projected"]
    page = pipeline_page(document)
    assert (
        page.verdict
        == "Measured, stages idle 11.1 % of 9.000 ms; projected, idle 27.3 % of 11.00 ms."
    )
    assert [part.id for part in page.parts] == ["projected", "measured"]
    assert page.title == "Pipeline: 1f1b, 4 stages, 8 microbatches"


def test_pieces_beyond_a_bound_stay_out_of_the_page(monkeypatch):
    monkeypatch.setattr(page_file, "MOST_PIECES", 63)
    document = document_of(*SHAPE)  # 4 stages, 8 microbatches, forward and backward
    carried = page_file.bounded(document)
    assert (len(document["projected"]["work"]), carried["projected"]["work"]) == (64, [])
    assert carried["projected"]["finding"]["notes"][-1].startswith("64 pieces of work are not in")
    assert carried["projected"]["grid"] == document["projected"]["grid"]
    monkeypatch.setattr(page_file, "MOST_PIECES", 64)
    assert page_file.bounded(document) == document


def test_a_pipeline_that_is_not_found_is_said(open_html):
    finding = {"question": "?", "headline": [], "columns": [], "rows": [], "notes": ["none: <b>"]}
    part = {"source": "a/<i>run", "finding": finding, "work": []}
    document = {"schema": "moeprof.pipeline/1", "projected": None, "measured": part}
    page = open_html(render(document)).page
    assert "None found: the notes say why." in page.inner_text(".trust")
    assert "none: <b>" in page.inner_text(".notes")
    assert "Measured: a/<i>run" in page.inner_text(".facts")


def test_a_profile_is_not_overwritten(tmp_path):
    done = run(*SHAPE, "--html", tmp_path / "run.xplane.pb")
    assert done.exit_code == 2
    assert "expected a name that ends in .html" in done.stderr
