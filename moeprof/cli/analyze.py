"""`moeprof analyze`: findings about a run as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli.findings import (
    EXIT_PARTIAL,
    is_partial,
    is_whole,
    newest,
    read_hosts,
    said_of_damage,
    said_of_hosts,
)
from moeprof.cli.kept import answered
from moeprof.cli.output import csv_text, screen, show
from moeprof.cli.progress import working
from moeprof.cli.selection import (
    RunPath,
    check_ways,
    keeps_answers,
    names_hardware,
    names_parts,
    reads_hosts,
    selects,
)

if TYPE_CHECKING:
    from moeprof.answers.document import Document
    from moeprof.tables.name_rule import NameRules


@click.command("analyze")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=RunPath())
@click.option(
    "--only", multiple=True, metavar="NAME", help="One question, with all its rows. Repeatable."
)
@click.option(
    "--rows",
    "most",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most N rows of each table, in JSON as well, which counts those left out.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.analysis/1.")
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="The rows of one --only NAME: a line of column names as in JSON (times in ns, sizes in "
    "bytes, shares from 0 to 1), then a line per row.",
)
@names_parts
@names_hardware
@selects
@reads_hosts
@keeps_answers
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[Path | str, ...],
    only: tuple[str, ...],
    most: int | None,
    as_json: bool,
    as_csv: bool,
    session: str | None,
    hosts: tuple[str, ...],
    hardware: str,
    names: NameRules | None,
    scheduler: str,
    workers: int | None,
    by_host: bool | None,
    is_kept: bool,
) -> None:
    """Where the step of a captured run goes.

    RUN is a run folder, a TensorBoard log folder, a plugins/profile/<session> folder, one
    .xplane.pb or .xplane.pb.gz file, a trace of PyTorch's profiler or a folder of one per rank
    (.pt.trace.json, .pt.trace.json.gz), or a folder of tables that `moeprof export` wrote. A
    .trace.json or .trace.json.gz of JAX will do where there is no .xplane.pb; it holds less,
    and the trust record says what. s3://, gs:// and what else fsspec reads will do, too.
    Several paths are of one run whose processes wrote to different folders.

    A run of many hosts is read host by host: questions that need all work of all hosts at once are
    then withheld, and say so: exit code 3 where --only names one of them.

    Exit code 3: figures were withheld, as the input cannot carry them; the trust record says which
    and why. A mere warning ends with 0.

    Tables are as wide as the terminal, 80 columns at least. What is piped has every column and
    every name whole; COLUMNS, where it is set, limits both.

    Examples:

        moeprof analyze runs/train-2026-12-01T10-22-07 --only breakdown

        moeprof analyze runs/train-2026-12-01T10-22-07 --only ops --csv > ops.csv
    """
    from moeprof.answers.document import with_rows
    from moeprof.reports.run.document import to_json
    from moeprof.session.workers import Ways

    check_ways(by_host, scheduler, workers)
    if as_csv:
        _require_one(only, as_json=as_json)
    read = [newest(run, session, runs) for run in runs]
    ways = Ways(by_host, scheduler, workers)
    asked = (only, session, hosts, hardware, names)
    document = answered(
        read,
        ("analyze", asked, by_host, as_json),
        lambda: read_hosts(read, *asked, ways, is_drawn=as_json),
        # how hosts are read is told while they are read, and asked for to be seen
        is_kept=is_kept and not (by_host or scheduler or workers is not None),
        is_whole=is_whole,
    )
    lacking = said_of_hosts(document, only)
    if as_json:
        with working("writing JSON"):
            text = to_json(document if most is None else with_rows(document, most))
        click.echo(text)
    elif as_csv:
        click.echo(_rows(document if most is None else with_rows(document, most)), nl=False)
        for why in filter(None, [said_of_damage(document), *lacking]):
            click.echo(f"moeprof: {why}", err=True)
    else:
        _show(document, only, most)
    if lacking or is_partial(document):
        ctx.exit(EXIT_PARTIAL)


def _require_one(only: tuple[str, ...], *, as_json: bool) -> None:
    """CSV is one table: a usage error says what was asked for instead."""
    if as_json:
        raise click.UsageError("--csv and --json: expected one of them, found both.")
    if len(set(only)) != 1:
        found = ", ".join(f"--only {name}" for name in dict.fromkeys(only)) or "none"
        raise click.UsageError(
            f"--csv: expected one --only NAME, as each question has a table of its own, "
            f"found {found}."
        )


def _rows(document: Document) -> str:
    """The table of the one question or drawing in CSV; nothing where nothing was recorded."""
    from moeprof.answers.document import drawn_rows

    for finding in document["analyses"].values():
        return csv_text(finding["columns"], finding["rows"])
    for drawing in document["drawings"].values():
        return csv_text(drawing["columns"], drawn_rows(drawing))
    return ""


def _show(document: Document, only: tuple[str, ...], most: int | None) -> None:
    from moeprof.reports.run.terminal import answers

    seen = screen()
    show(answers(document, only, seen.width, most, seen.height))
