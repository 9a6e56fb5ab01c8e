"""A question that is one file and one page of docs appears wherever the others do."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.trace import trace_of
from builders.xspace import thunk
from click.testing import CliRunner

import moeprof
from moeprof.analyzers import questions
from moeprof.analyzers.registry import all_names, question, questions_that_need
from moeprof.cli.main import group
from moeprof.tables.law import Need
from moeprof.tables.store import write_tables

FILE = '''"""Question: how many pieces of device work does a step have?

Returns: one row per step.
"""

from moeprof.analyzers.question import Group, Question
from moeprof.answers.document import headline
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema

SCHEMA = Schema(
    "pieces",
    (Column("step", "int64", "", "step"), Column("pieces", "int64", "count", "pieces of work")),
)
ASKS = "How many pieces of device work does a step have?"


def pieces(trace):
    counts = trace.events.groupby("step").size()
    table = SCHEMA.frame({"step": counts.index, "pieces": counts.to_numpy()})
    return Analysis("pieces", ASKS, (Metric("pieces", len(trace.events), "count"),), SCHEMA, table)


def sentence(document):
    return f"The capture has {headline(document, 'pieces')['pieces']} pieces of work."


QUESTION = Question(
    title="Pieces of work",
    group=Group.DEVICES,
    place=9,
    asks=ASKS,
    needs=frozenset({Need.HOST_RECORD}),
    schema=SCHEMA,
    run=pieces,
    sentence=sentence,
)
'''
PROGRAM = hlo_proto(computation("main", op("neg", "negate", "f32[8]", op_name="jit(s)/norm/neg")))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, while the question's file is there."""
    folder = tmp_path / "questions"
    folder.mkdir()
    (folder / "pieces.py").write_text(FILE)
    monkeypatch.setattr(questions, "__path__", [*questions.__path__, str(folder)])
    trace = trace_of(tmp_path, PROGRAM, *(thunk("neg", 10 * i + 1, 5, run_id=i) for i in range(3)))
    write_tables(trace, tmp_path / "tables")
    return tmp_path / "tables"


def printed(*words: object) -> str:
    done = CliRunner().invoke(group, list(map(str, words)), env={"COLUMNS": "80"})
    assert done.exit_code in (0, 3), done.output
    return done.stdout


def test_the_lists_have_it(run):
    assert question("pieces").title == "Pieces of work"
    assert all_names()[-2:] == ["pieces", "hints"]
    assert "pieces" in questions_that_need([Need.HOST_RECORD])


def test_the_command_answers_it(run):
    said = printed("analyze", run, "--only", "pieces")
    assert "Pieces of work\nHow many pieces of device work does a step have?\n" in said
    assert "The capture has 3 pieces of work." in said


def test_json_and_python_have_it(run):
    found = json.loads(printed("analyze", run, "--json"))["analyses"]["pieces"]
    assert [row["pieces"] for row in found["rows"]] == [1, 1, 1]
    answer = moeprof.load(run).pieces()
    assert answer.headline == {"pieces": 3}
    assert answer.table["pieces"].tolist() == [1, 1, 1]


def test_the_page_has_it_in_its_group(run, tmp_path):
    printed("report", run, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<a href="#pieces"' in page
    assert page.index('href="#launch"') < page.index('href="#pieces"')


def test_the_index_of_the_docs_has_it(run):
    docs = Path(__file__).parents[2] / "docs"
    index = runpy.run_path(str(docs / "write_questions.py"))["with_questions"]
    (row,) = [
        line
        for line in index((docs / "README.md").read_text(encoding="utf-8")).splitlines()
        if "questions/pieces.md" in line
    ]
    assert "How many pieces of device work does a step have?" in row
