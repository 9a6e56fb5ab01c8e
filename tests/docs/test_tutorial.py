"""The tutorial shows what its commands printed, and its story holds in what they printed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

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
    assert re.search(r"dense \S+back +8 ", sites)


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
