"""Question: what does moeprof answer today, and which questions are there?

Puts what the commands print about captures in tests/data into the pages of docs/questions, and the
table of all questions into docs/README.md:

    python docs/write_questions.py
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from click.testing import CliRunner

from moeprof.analyzers.registry import all_questions
from moeprof.answers.document import Document
from moeprof.cli.findings import read_document
from moeprof.cli.main import group
from moeprof.reports.run import terminal as text

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = DOCS / "questions"
INDEX = DOCS / "README.md"
_QUESTIONS = re.compile(r"(<!-- every question, [^\n]+-->\n).*?(<!-- end -->)", re.DOTALL)
_EXAMPLE = re.compile(
    r"(\$ moeprof (?P<command>[^\n]+)\n```\n<!-- written by [^\n]+-->\n).*?(<!-- end -->)",
    re.DOTALL,
)
_ANALYZE = "analyze "


def written(page: Path) -> str:
    """The text of a page with its excerpts as the commands print them today."""

    def with_output(found: re.Match[str]) -> str:
        command = found["command"]
        if command.startswith(_ANALYZE):
            said = _section(command.removeprefix(_ANALYZE), page.stem)
        else:
            said = _printed(command)
        return f"{found[1]}```\n{said}\n```\n{found[3]}"

    return _EXAMPLE.sub(with_output, page.read_text(encoding="utf-8"))


def with_questions(index: str) -> str:
    """The text of the index with the table of all questions, by group."""
    return _QUESTIONS.sub(lambda found: f"{found[1]}{_table()}\n{found[2]}", index)


def _table() -> str:
    rows = ["| about | the question | answered as | page |", "|---|---|---|---|"]
    last = None
    for each in all_questions():
        about = "" if each.group is last else each.group.value
        page = f"[{each.name}](questions/{each.name}.md)"
        rows.append(f"| {about} | {each.asks} | {each.title} | {page} |")
        last = each.group
    return "\n".join(rows)


def _section(run: str, question: str) -> str:
    """What `moeprof analyze RUN` prints about one question: its first rows and its notes."""
    document = _document(run)
    alone: Document = {**document, "analyses": {question: document["analyses"][question]}}
    return text.tables(alone).plain.rpartition("\n\nNext")[0]


@functools.cache
def _document(run: str) -> Document:
    return read_document(ROOT / run, (), None, (), "")


def _printed(command: str) -> str:
    done = CliRunner().invoke(group, command.split(), env={"COLUMNS": "80"})
    if done.exit_code:
        raise SystemExit(f"{command}: {done.output}")
    return done.stdout.rstrip()


if __name__ == "__main__":
    for each in sorted(PAGES.glob("*.md")):
        each.write_text(written(each), encoding="utf-8")
    INDEX.write_text(with_questions(INDEX.read_text(encoding="utf-8")), encoding="utf-8")
