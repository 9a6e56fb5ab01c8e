"""`moeprof report`: one HTML page about one or more runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from moeprof.cli.findings import EXIT_PARTIAL, is_whole, newest, read_document, said_of_damage
from moeprof.cli.kept import answered
from moeprof.cli.output import refuse_other_than_a_page
from moeprof.cli.progress import working
from moeprof.cli.selection import RunPath, keeps_answers, names_hardware, names_parts, selects
from moeprof.interpreter import own_the_process

if TYPE_CHECKING:
    from moeprof.tables.name_rule import NameRules


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=RunPath())
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. Default: report.html in a run folder that `moeprof capture` made, "
    "else moeprof-report.html in the current folder.",
)
@names_parts
@names_hardware
@selects
@keeps_answers
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[Path | str, ...],
    out: Path | None,
    session: str | None,
    hosts: tuple[str, ...],
    hardware: str,
    names: NameRules | None,
    is_kept: bool,
) -> None:
    """Write one self-contained HTML page about one or more runs.

    The page needs no network. Several runs are compared side by side on it; --session,
    --host and --names then hold for each of them. Its path is printed on stdout.

    Exit code 3: figures were withheld; the page says which and why.

    Example:

        moeprof report runs/dense-cf1.25 runs/sparse-gmm -o strategies.html
    """
    from moeprof.reports.parts.templating import write

    runs = tuple(newest(run, session, runs) for run in runs)
    path = out or _default_path(runs)
    refuse_other_than_a_page(path, "--out", runs)
    asked = (session, hosts, hardware, names)
    made = answered(
        runs,
        ("report", asked),
        lambda: _page(runs, *asked),
        is_kept=is_kept,
        is_whole=lambda made: made["is_whole"],
    )
    write(made["page"], path, "-o")
    click.echo(path)
    damage = made["damage"]
    for said in damage:
        click.echo(f"moeprof: {said}. The page says more", err=True)
    if damage:
        ctx.exit(EXIT_PARTIAL)


class _Made(TypedDict):
    """The page, for each run with damage a line that says what it is, and if all was read."""

    page: str
    damage: list[str]
    is_whole: bool


def _page(
    runs: tuple[Path | str, ...],
    session: str | None,
    hosts: tuple[str, ...],
    hardware: str,
    names: NameRules | None,
) -> _Made:
    from moeprof.reports.parts.templating import packed_plotly
    from moeprof.reports.run.page import render

    own_the_process()
    packed_plotly()  # on a thread, while the run is read
    asked, is_drawn = (session, hosts, hardware, names), len(runs) == 1
    documents = [read_document(r, (), *asked, is_drawn=is_drawn, as_named=True) for r in runs]
    with working("drawing the page"):
        page = render(documents)
    damage = list(filter(None, map(said_of_damage, documents)))
    return {"page": page, "damage": damage, "is_whole": all(map(is_whole, documents))}


def _default_path(runs: tuple[Path | str, ...]) -> Path:
    """Only a folder that `moeprof capture` made is written into, and only for that run alone."""
    from moeprof.reports.run.record import is_run_folder
    from moeprof.tables.store import holds_tables

    run = runs[0]
    if len(runs) == 1 and isinstance(run, Path) and is_run_folder(run) and not holds_tables(run):
        return run / "report.html"
    return Path("moeprof-report.html")
