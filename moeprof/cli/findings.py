"""Question: how does a command get from a run's path to the document that it shows?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprof.reports.document import Document

EXIT_PARTIAL = 3
"""Exit code of a command that is done, from damaged or partial input."""


def read_document(run: Path, only: Sequence[str] = ()) -> Document:
    """Open a run, answer the questions in `only` (all where empty), and put them together.

    Raises:
        TraceError: the run cannot be read.
        SpecError: `only` names a question that does not exist.
    """
    from moeprof.analyzers import analyze
    from moeprof.ingest import open_run
    from moeprof.reports.document import build

    trace = open_run(run)
    return build(trace, analyze(trace, only))


def is_partial(document: Document) -> bool:
    """Whether a check of the input found it damaged or incomplete."""
    return any(check["verdict"] != "ok" for check in document["trust"])
