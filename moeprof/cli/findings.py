"""Question: how does a command get from a run's path to the document that it shows?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast, overload

import click

from moeprof.interpreter import own_the_process, uncollected

if TYPE_CHECKING:
    from moeprof.answers.document import Document
    from moeprof.reports.comparison.document import SideInfo
    from moeprof.session.run import Run
    from moeprof.session.workers import Ways
    from moeprof.tables.name_rule import NameRules

EXIT_PARTIAL = 3
"""Exit code of a command that is done, but withheld figures that the input cannot carry."""


@overload
def newest(
    run: Path, session: str | None, beside: Sequence[Path | str] = ..., option: str = ...
) -> Path: ...
@overload
def newest(
    run: Path | str, session: str | None, beside: Sequence[Path | str] = ..., option: str = ...
) -> Path | str: ...
def newest(
    run: Path | str,
    session: str | None,
    beside: Sequence[Path | str] = (),
    option: str = "--session",
) -> Path | str:
    """The last recording that `moeprof capture` was told to write to `run`, which a line says.

    The address of a run in a store is what it names.

    A job that was started again with the same ``--out`` leaves several; ``--session``, or another
    ``option``, names one, and so does another recording ``beside`` it on the command line.
    """
    from moeprof.recordings import described_newest, newest_recording

    if isinstance(run, str):
        return run
    folders = [each for each in beside if isinstance(each, Path)]
    last = run if session is not None else newest_recording(run, folders)
    if last != run:
        how = f"{option} {{}} reads the first" if option else ""
        click.echo(f"moeprof: {described_newest(run, last, how)}", err=True)
    return last


def read_document(
    run: Path | str | Sequence[Path],
    only: Sequence[str] = (),
    session: str | None = None,
    hosts: Sequence[str] = (),
    hardware: str = "",
    names: NameRules | None = None,
    *,
    is_drawn: bool = False,
    as_named: bool = False,
) -> Document:
    """Open a run, answer the questions in `only` (all where empty), and put them together.

    ``is_drawn`` asks for the drawings too, where `only` is empty. ``hardware`` is the key of the
    device it ran on, by default what the profile says. ``names`` are the user's rules for parts.
    Several paths are folders of one run. A run that was recorded again may be read ``as_named``.

    Raises:
        SelectionError: there is no such session, host, question or hardware.
        TraceError: the run cannot be read.
    """
    ways = {"is_drawn": is_drawn, "as_named": as_named}
    return read_both(run, only, session, hosts, hardware, names, **ways)[1]


def read_both(
    run: Path | str | Sequence[Path],
    only: Sequence[str] = (),
    session: str | None = None,
    hosts: Sequence[str] = (),
    hardware: str = "",
    names: NameRules | None = None,
    *,
    is_drawn: bool = False,
    as_named: bool = False,
) -> tuple[Run, Document]:
    """The run too, beside the document that `read_document` makes of it."""
    from moeprof.cli.progress import working

    with working("reading the run") as work:
        with uncollected():  # imports make half a million objects
            from moeprof.session.run import open_session

        tell = work.counting("reading the run")
        opened = open_session(run, session, hosts, hardware, names, tell=tell, as_named=as_named)
        tell = work.counting("answering questions")
        return opened, opened.document(only, is_drawn=is_drawn, tell=tell)


def read_hosts(
    runs: Sequence[Path | str],
    only: Sequence[str],
    session: str | None,
    hosts: Sequence[str],
    hardware: str,
    names: NameRules | None,
    ways: Ways,
    *,
    is_drawn: bool = False,
) -> Document:
    """`read_document` of a run that may lie in a store, or be too large to be read at once.

    ``runs`` are the paths of its folders.

    Raises:
        SelectionError: there is no such session, host, question or hardware.
        SpecError: workers are asked for, and Dask or its scheduler is not there.
    """
    from moeprof.cli.progress import working

    own_the_process()
    with working("reading the run") as work:
        with uncollected():
            from moeprof.analyzers.registry import in_order
            from moeprof.ingest.sources.store import run_at
            from moeprof.session.run import Run, open_session
            from moeprof.session.workers import trace_by_host
            from moeprof.specs.hardware import load_hardware
            from moeprof.tables.trace import with_meta
        if only:
            in_order(only)  # a wrong name is told before a long read
        if hardware:
            load_hardware(hardware)
        tell = work.counting("reading the run")
        paths = list(map(str, runs))
        with run_at(paths) as here:
            large = trace_by_host(here, only, session, hosts, names, ways, tell=tell)
            if large is None:
                if asked := _asked_by_host(ways):
                    click.echo(f"moeprof: {', '.join(paths)}: {asked}", err=True)
                opened = open_session(
                    here.places, session, hosts, hardware, names, urls=here.urls, tell=tell
                )
                if here.names:
                    opened = Run(with_meta(opened.trace, path=", ".join(paths)))
            else:
                if hardware:
                    from moeprof.session.by_host import on_hardware  # by which it was read

                    large = on_hardware(large, hardware)
                opened = Run(large)
            tell = work.counting("answering questions")
            document = opened.document(only, is_drawn=is_drawn, tell=tell)
            return cast("Document", here.as_given(document)) if here.names else document


def _asked_by_host(ways: Ways) -> str:
    """What is said of a run that is read at once though asked for host by host; else empty."""
    workers = "" if ways.workers is None else "--workers"
    given = "--scheduler" if ways.scheduler else workers or ("--by-host" if ways.by_host else "")
    if not given:
        return ""
    return (
        f"read at once: {given} expected several hosts that left an .xplane.pb each, found fewer, "
        "JSON traces or tables"
    )


def is_whole(document: Document) -> bool:
    """Whether every file of the run was read to its end, as far as that was looked at."""
    laws = {law["check"]: law["verdict"] for law in document["trust"]}
    return laws.get("truncated", "ok") == "ok"


def is_partial(document: Document | SideInfo) -> bool:
    """Whether figures are withheld: a law withholds some, or no step could be measured."""
    from moeprof.reports.parts.phrases import withholds_any

    no_step = not any(step["used"] for step in document["steps"])
    return no_step or any(withholds_any(law) for law in document["trust"])


def said_of_hosts(document: Document, only: Sequence[str]) -> list[str]:
    """Which of the questions and drawings asked for a run read host by host cannot answer, and why.

    A run that grows is read so one day: a table without a row must not pass for an answer.
    """
    from moeprof.answers.values import printable
    from moeprof.reports.parts.phrases import withheld_by

    found = {**document["analyses"], **document["drawings"]}
    return [
        printable(f"{document['run']['path']}: {name}: {why}")
        for name in dict.fromkeys(only)
        if not withheld_by(document, name)
        for why in found[name]["notes"][:1]
        if why.startswith("withheld: ")
    ]


def said_of_damage(document: Document) -> str:
    """Why figures of a run are withheld, in one line: the cut and the first law that does so.

    Empty where none are.
    """
    from moeprof.answers.document import is_unrecorded
    from moeprof.answers.values import printable
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
