"""Question: how does a command get from a run's path to the document that it shows?"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprof.reports.document import Document, TrustInfo
    from moeprof.tables.trace import Trace

# A warning of these says how good the figures are, not that something of the input is missing.
_QUALITY = ("programs", "resolved", "steps", "step_order", "strays", "clocks", "format")

EXIT_PARTIAL = 3
"""Exit code of a command that is done, from damaged or partial input."""


def read_document(
    run: Path,
    only: Sequence[str] = (),
    session: str | None = None,
    hosts: Sequence[str] = (),
    hardware: str = "",
    *,
    is_drawn: bool = False,
) -> Document:
    """Open a run, answer the questions in `only` (all where empty), and put them together.

    ``is_drawn`` asks for the drawings too, where `only` is empty. ``hardware`` is the key of the
    device it ran on, by default what the profile says.

    Raises:
        SelectionError: there is no such session, host, question or hardware.
        TraceError: the run cannot be read.
    """
    return read_both(run, only, session, hosts, hardware, is_drawn=is_drawn)[1]


def read_both(
    run: Path,
    only: Sequence[str] = (),
    session: str | None = None,
    hosts: Sequence[str] = (),
    hardware: str = "",
    *,
    is_drawn: bool = False,
) -> tuple[Trace, Document]:
    """The trace of a run too, beside the document that `read_document` makes of it."""
    from moeprof.cli.progress import working

    with working("reading the run") as work:
        with _no_collection():
            from moeprof.analyzers import analyze
            from moeprof.ingest import open_run
            from moeprof.reports.document import build
            from moeprof.specs.hardware import load_hardware
            from moeprof.tables.trace import with_hardware

        if hardware:
            load_hardware(hardware)  # a wrong key is told before a long read
        trace = open_run(run, session, hosts, tell=work.counting("reading the run"))
        trace = with_hardware(trace, hardware) if hardware else trace
        tell = work.counting("answering questions")
        return trace, build(trace, analyze(trace, only, is_drawn=is_drawn, tell=tell))


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


def said_of_damage(document: Document) -> str:
    """What is damaged or missing of a partial run, in one line: the cut and the first failed check.

    Empty where nothing is.
    """
    from moeprof.reports.names import printable
    from moeprof.reports.story import troubles

    if not is_partial(document):
        return ""
    faults = [check for check in troubles(document) if _is_fault(check)]
    failed = [check for check in faults if check["verdict"] == "fail"]
    cut = [check for check in faults if check["check"] == "truncated"]
    told = [check["detail"] for check in (*cut, *failed[:1])] or [c["detail"] for c in faults[:1]]
    record = document["run"].get("record")
    if not told and record is not None and record["status"] == "partial":
        told = ["the capture ended early"]
    said = "; ".join(told or ["no step to measure"])
    return printable(f"{document['run']['path']}: {said}")


def _is_fault(check: TrustInfo) -> bool:
    return check["verdict"] == "fail" or (
        check["verdict"] == "warn" and check["check"] not in _QUALITY
    )
