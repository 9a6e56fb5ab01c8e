"""`moeprof analyze`: findings about a run as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli.findings import EXIT_PARTIAL, is_partial, newest, read_hosts
from moeprof.cli.progress import working
from moeprof.cli.selection import RunPath, names_hardware, names_parts, reads_hosts, selects

if TYPE_CHECKING:
    from moeprof.answers.document import Document
    from moeprof.tables.name_rule import NameRules


@click.command("analyze")
@click.argument("run", type=RunPath())
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
@names_parts
@names_hardware
@selects
@reads_hosts
@click.pass_context
def command(
    ctx: click.Context,
    run: Path | str,
    only: tuple[str, ...],
    most: int | None,
    as_json: bool,
    session: str | None,
    hosts: tuple[str, ...],
    hardware: str,
    names: NameRules | None,
    scheduler: str,
    workers: int | None,
    by_host: bool | None,
) -> None:
    """Where the step of a captured run goes.

    RUN is a run folder, a TensorBoard log folder, a plugins/profile/<session> folder, one
    .xplane.pb or .xplane.pb.gz file, or a folder of tables that `moeprof export` wrote. A
    .trace.json or .trace.json.gz of JAX or of PyTorch's profiler will do where there is no
    .xplane.pb; it holds less, and the trust record says what. s3://, gs:// and what else fsspec
    reads will do, too.

    A run of many hosts is read host by host: questions that need all work of all hosts at once are
    then withheld, and say so.

    Exit code 3: figures were withheld, as the input cannot carry them; the trust record says which
    and why. A mere warning ends with 0.

    Example:

        moeprof analyze runs/train-2026-12-01T10-22-07 --only breakdown
    """
    from moeprof.answers.document import with_rows
    from moeprof.reports.run.document import to_json

    run = newest(run, session) if isinstance(run, Path) else run
    ways = (by_host, scheduler, workers)
    document = read_hosts(run, only, session, hosts, hardware, names, ways, is_drawn=as_json)
    if as_json:
        with working("writing JSON"):
            text = to_json(document if most is None else with_rows(document, most))
        click.echo(text)
    else:
        _show(document, only, most)
    if is_partial(document):
        ctx.exit(EXIT_PARTIAL)


def _show(document: Document, only: tuple[str, ...], most: int | None) -> None:
    from rich.console import Console

    from moeprof.reports.run import terminal as text

    console = Console(highlight=False)
    console.print(text.overview(document), soft_wrap=True)
    console.print()
    # rich takes COLUMNS where it is set, the terminal's width, else 80
    width = max(console.width, text.WIDTH)
    console.print(text.tables(document, only, width, most), soft_wrap=True)
