"""The tutorial shows what its commands printed, and its story holds in what they printed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import cast

import pytest

from moeprof.analyzers.registry import question
from moeprof.answers.document import Document
from moeprof.reports.run.words import sentence

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"\$ ([^`]+?)\n```\n<!-- written by [^>]+-->\n```\n(.*?)\n```\n", re.DOTALL)


@pytest.fixture(scope="module")
def printed():
    """What each command of the page printed."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(page)
    assert len(blocks) == page.count("<!-- written by")
    return {" ".join(command.replace("\\\n", " ").split()): output for command, output in blocks}


def test_the_fallback_is_found_and_gone_after_the_change(printed):
    before = printed["moeprof analyze runs/tutorial/before --only hints"]
    after = printed["moeprof analyze runs/tutorial/after --only hints"]
    assert "Dense ragged dot: saves at most" in before
    assert "Dense ragged dot" not in after
    sites = printed["moeprof analyze runs/tutorial/before --only grouped_gemm"]
    assert re.search(r"dense \S+back .+ 8  ", sites)


def test_sections_are_counted():
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", page, re.MULTILINE)]
    assert numbers == list(range(1, page.count("\n## ") + 1))


_UNITS = {
    "": 1,
    "B": 1,
    "ns": 1,
    "µs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}


@pytest.mark.parametrize(
    ("run", "name"), [("before", "hints"), ("after", "hints"), ("before", "memory")]
)
def test_what_is_shown_reads_as_it_does_today(printed, run, name):
    """The question, and the sentence that these figures make today."""
    head = printed[f"moeprof analyze runs/tutorial/{run} --only {name}"].partition("\n\n")[0]
    asks = question(name).asks
    _, asked, told = head.partition(f"{asks}\n")
    assert asked
    said, _, figures = " ".join(told.splitlines()).rpartition(". ")
    known: dict[str, float] = {}
    for figure in figures.split(" · "):
        metric, value, unit = re.fullmatch(r"(\D+) ([\d.]+) ?(\S*)", figure).groups()
        known[metric.replace(" ", "_")] = float(value) * _UNITS[unit]
    headline = [{"metric": metric, "value": value, "unit": ""} for metric, value in known.items()]
    finding = {"question": question, "headline": headline, "columns": [], "rows": [], "notes": []}
    made = cast(Document, {"analyses": {name: finding}, "trust": []})
    assert sentence(made, name) == f"{said}.", "run: python docs/write_tutorial.py"


def test_the_change_is_beyond_the_noise(printed):
    first = printed["moeprof compare runs/tutorial/before runs/tutorial/after"].splitlines()[0]
    assert re.match(r"step .+ \(−\d+\.\d %, noise .+: beyond it\)", first)


def test_writing_it_keeps_all_that_is_not_written():
    """The line about the machine has its place, and each command its own."""
    write = runpy.run_path(str(DOCS / "write_tutorial.py"))
    page = "a\n<!-- machine -->\n<!-- end -->\nb\n"
    once = write["written"](page)
    assert re.fullmatch(r"a\n<!-- machine -->\nMeasured on .+\n<!-- end -->\nb\n", once)
    assert write["written"](once).startswith("a\n<!-- machine -->\nMeasured")


def test_a_command_that_fails_ends_the_writing():
    """Its output is not written into the page."""
    write = runpy.run_path(str(DOCS / "write_tutorial.py"))
    marks = "<!-- written by docs/write_tutorial.py -->\n<!-- end -->"
    page = f"$ moeprof analyze no-such-run\n```\n{marks}"
    with pytest.raises(SystemExit, match="exit code 2"):
        write["written"](page)
