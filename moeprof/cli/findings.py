"""Question: how does a command get from a run's path to the document that it shows?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.interpreter import uncollected

if TYPE_CHECKING:
    from moeprof.answers.document import Document
    from moeprof.reports.comparison.document import SideInfo
    from moeprof.session.run import Run
    from moeprof.tables.name_rule import NameRules

EXIT_PARTIAL = 3
"""Exit code of a command that is done, but withheld figures that the input cannot carry."""


def newest(run: Path, session: str | None) -> Path:
    """The last recording that `moeprof capture` was told to write to `run`, which a line says.

    A job that was started again with the same ``--out`` leaves several; ``--session`` names one.
    """
    from moeprof.recording.run_folder import newest_recording

    last = run if session is not None else newest_recording(run)
    if last != run:
        first = Path(os.path.abspath(run)).name
        text = (
            f"{run} was recorded again: read {last}, the newest; --session {first} reads the first"
        )
        click.echo(f"moeprof: {text}", err=True)
    return last


def read_document(
    run: Path | Sequence[Path],
    only: Sequence[str] = (),
    session: str | None = None,
    hosts: Sequence[str] = (),
    hardware: str = "",
    names: NameRules | None = None,
    *,
    is_drawn: bool = False,
) -> Document:
    """Open a run, answer the questions in `only` (all where empty), and put them together.

    ``is_drawn`` asks for the drawings too, where `only` is empty. ``hardware`` is the key of the
    device it ran on, by default what the profile says. ``names`` are the user's rules for parts.
    Several paths are folders of one run.

    Raises:
        SelectionError: there is no such session, host, question or hardware.
        TraceError: the run cannot be read.
    """
    return read_both(run, only, session, hosts, hardware, names, is_drawn=is_drawn)[1]


def read_both(
    run: Path | Sequence[Path],
    only: Sequence[str] = (),
    session: str | None = None,
    hosts: Sequence[str] = (),
    hardware: str = "",
    names: NameRules | None = None,
    *,
    is_drawn: bool = False,
) -> tuple[Run, Document]:
    """The run too, beside the document that `read_document` makes of it."""
    from moeprof.cli.progress import working

    with working("reading the run") as work:
        with uncollected():  # imports make half a million objects
            from moeprof.session.run import open_session

        tell = work.counting("reading the run")
        opened = open_session(run, session, hosts, hardware, names, tell=tell)
        tell = work.counting("answering questions")
        return opened, opened.document(only, is_drawn=is_drawn, tell=tell)


def read_hosts(
    runs: Sequence[Path | str],
    only: Sequence[str],
    session: str | None,
    hosts: Sequence[str],
    hardware: str,
    names: NameRules | None,
    ways: tuple[bool | None, str, int | None],
    *,
    is_drawn: bool = False,
) -> Document:
    """`read_document` of a run that may lie in a store, or be too large to be read at once.

    ``runs`` are the paths of its folders.

    Raises:
        SpecError: workers are asked for, and Dask or its scheduler is not there.
    """
    from moeprof.cli.progress import working

    with working("reading the run") as work:
        with uncollected():
            from moeprof.session.run import Run, open_session
            from moeprof.session.workers import Ways, run_at, trace_by_host
            from moeprof.specs.hardware import load_hardware
            from moeprof.tables.trace import with_path
        if hardware:
            load_hardware(hardware)
        tell = work.counting("reading the run")
        paths = list(map(str, runs))
        with run_at(paths) as (here, urls):
            large = trace_by_host(
                paths, only, session, hosts, names, Ways(*ways), here=here, urls=urls, tell=tell
            )
            if large is None:
                place = here[0] if len(here) == 1 else here
                opened = open_session(place, session, hosts, hardware, names, tell=tell)
                if urls:
                    opened = Run(with_path(opened.trace, ", ".join(paths)))
            else:
                if hardware:
                    from moeprof.session.by_host import on_hardware  # by which it was read

                    large = on_hardware(large, hardware)
                opened = Run(large)
            tell = work.counting("answering questions")
            return opened.document(only, is_drawn=is_drawn, tell=tell)


def is_partial(document: Document | SideInfo) -> bool:
    """Whether figures are withheld: a law withholds some, or no step could be measured."""
    from moeprof.reports.parts.phrases import withholds_any

    no_step = not any(step["used"] for step in document["steps"])
    return no_step or any(withholds_any(law) for law in document["trust"])


def said_of_damage(document: Document) -> str:
    """Why figures of a run are withheld, in one line: the cut and the first law that does so.

    Empty where none are.
    """
    from moeprof.answers.document import is_unrecorded
    from moeprof.answers.names import printable
    from moeprof.reports.parts.phrases import troubles, withholds_any
    from moeprof.reports.run.words import problems

    if not is_partial(document):
        return ""
    if is_unrecorded(document):
        said = "; ".join(["no profile was recorded", *problems(document)])
        return printable(f"{document['run']['path']}: {said}")
    faults = troubles(document)
    cut = [law["detail"] for law in faults if law["check"] == "truncated"]
    others = [law for law in faults if law["check"] != "truncated" and withholds_any(law)]
    said = "; ".join([*cut, *(law["detail"] for law in others[:1])] or ["no step to measure"])
    return printable(f"{document['run']['path']}: {said}")
