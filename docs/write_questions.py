"""Question: what does moeprof answer today, for the examples of the pages in docs/questions?

Puts what the commands print about captures in tests/data into the pages:

    python docs/write_questions.py
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from click.testing import CliRunner

from moeprof.answers.document import Document
from moeprof.cli.findings import read_document
from moeprof.cli.main import group
from moeprof.reports.run import terminal as text

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = DOCS / "questions"
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
