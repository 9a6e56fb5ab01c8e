"""Every question has its page, whose examples are what the commands print today."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from moeprof.analyzers.classify.components import BY_RULE, BY_STRUCTURE, HOW
from moeprof.analyzers.registry import all_drawings, all_names, all_patterns, all_questions

DOCS = Path(__file__).parents[2] / "docs"
PAGES = DOCS / "questions"
PARTS = (
    "What it means",
    "How it is computed",
    "How to read it",
    "What it cannot see",
    "What to do",
    "Example",
)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)?(#[^)\s]+)?\)")


@pytest.fixture(scope="module")
def write_questions():
    return runpy.run_path(str(DOCS / "write_questions.py"))


def test_there_is_a_page_for_every_question_and_no_other():
    assert {page.stem for page in PAGES.glob("*.md")} == set(all_names())


@pytest.mark.parametrize("name", all_names())
def test_a_page_has_all_its_parts_in_order(name):
    text = _text(PAGES / f"{name}.md")
    assert text.startswith(f"# {name}: ")
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == PARTS
    assert f"(../tables.md#{name})" in text
    assert f"[{name}](questions/{name}.md)" in _text(DOCS / "README.md")


def test_examples_are_what_the_commands_print(write_questions):
    stale = [
        page.name
        for page in sorted(PAGES.glob("*.md"))
        if write_questions["written"](page) != _text(page)
    ]
    assert not stale, "run: python docs/write_questions.py"


def test_the_index_has_every_question_as_it_is_asked(write_questions):
    index = _text(DOCS / "README.md")
    assert write_questions["with_questions"](index) == index, "run: python docs/write_questions.py"
    for each in all_questions():
        row = f"| {each.asks} | {each.title} | [{each.name}](questions/{each.name}.md) |"
        assert row in index


@pytest.mark.parametrize("drawing", all_drawings(), ids=lambda each: each.name)
def test_a_drawing_is_mentioned_where_its_question_is_explained(drawing):
    assert f"`{drawing.name}`" in _text(PAGES / f"{drawing.beside}.md")


def test_every_pattern_is_in_the_table_of_hints():
    named = re.findall(r"^\| (\w+) \|", _text(PAGES / "hints.md"), re.MULTILINE)
    assert named == ["pattern", *(each.name for each in all_patterns())]


@pytest.mark.parametrize("name", sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")))
def test_links_lead_somewhere(name):
    page = DOCS / name
    for path, anchor in _LINK.findall(_text(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor[1:] in _anchors(target), f"{path}{anchor}"


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub makes links of them."""
    headings = re.findall(r"^#+ (.+)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_kind_of_evidence_is_explained_and_counted():
    page = _text(PAGES / "breakdown.md")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    told = {row[0].strip("`"): row[2] for row in rows if len(row) == 3}
    assert set(told) == {how.evidence for how in HOW.values()}
    assert {name for name, counts in told.items() if counts == "structure"} == BY_STRUCTURE
    assert {name for name, counts in told.items() if counts == "your rules"} == {BY_RULE}
