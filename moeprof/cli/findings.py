"""Question: how does a command get from a run's path to the document that it shows?"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprof.reports.document import Document, TrustInfo

# A warning of these says how good the figures are, not that something of the input is missing.
_QUALITY = ("programs", "resolved", "steps", "step_order", "strays", "clocks", "format")

EXIT_PARTIAL = 3
"""Exit code of a command that is done, from damaged or partial input."""


def read_document(
    run: Path, only: Sequence[str] = (), session: str | None = None, hosts: Sequence[str] = ()
) -> Document:
    """Open a run, answer the questions in `only` (all where empty), and put them together.

    Raises:
        SelectionError: there is no such session, host or question.
        TraceError: the run cannot be read.
    """
    with _no_collection():
        from moeprof.analyzers import analyze
        from moeprof.ingest import open_run
        from moeprof.reports.document import build

    trace = open_run(run, session, hosts)
    return build(trace, analyze(trace, only))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the search for garbage: imports make half a million objects and hardly any garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def is_partial(document: Document) -> bool:
    """Whether the input is damaged or holds less than it should.

    A capture that ended early, a check that failed or found a fault, or no step to measure.
    """
    record = document["run"].get("record")
    return (
        (record is not None and record["status"] == "partial")
        or not any(step["used"] for step in document["steps"])
        or any(_is_fault(check) for check in document["trust"])
    )


def _is_fault(check: TrustInfo) -> bool:
    return check["verdict"] == "fail" or (
        check["verdict"] == "warn" and check["check"] not in _QUALITY
    )
