"""`moeprof export`: a run in a form that other programs read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moeprof.cli.findings import EXIT_PARTIAL, newest, said_of_damage
from moeprof.cli.output import refuse_an_input, refuse_no_place
from moeprof.cli.progress import working
from moeprof.cli.selection import RunPath, names_parts, selects
from moeprof.interpreter import own_the_process
from moeprof.units import format_bytes

if TYPE_CHECKING:
    from moeprof.tables.name_rule import NameRules
    from moeprof.tables.trace_json import StoredTable

SCHEMA = "moeprof.export/1"
_SUFFIX = ".pftrace"  # no profile has it: a slip of the hand replaces none


@click.command("export")
@click.argument("run", type=RunPath())
@click.option(
    "--tables",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="New or empty folder for one Parquet file per table.",
)
@click.option(
    "--perfetto",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A trace for ui.perfetto.dev; its name ends in .pftrace. Replaced if it is there.",
)
@names_parts
@selects
@click.pass_context
def command(
    ctx: click.Context,
    run: Path | str,
    folder: Path | None,
    perfetto: Path | None,
    session: str | None,
    hosts: tuple[str, ...],
    names: NameRules | None,
) -> None:
    """Write a run in a form that other programs read.

    --tables writes Parquet, which every command takes in the place of the run; columns, units and
    meanings stand in the files, and the rules of --names go with them. --perfetto writes a
    Perfetto trace. Each device shows its components of the step, gaps with their cause, collectives
    with wait and transfer, streams and memory; each host its steps, threads and recorded routing.
    docs/perfetto.md says what each track means, and how to ask by SQL.

    What was written is printed on stdout, a line each; more about it goes to stderr: a few words
    on a terminal, elsewhere one JSON document, moeprof.export/1.

    Exit code 3: figures of the run would be withheld; the trust record says which and why.

    Example:

        moeprof export runs/train-2026-12-01T10-22-07 --tables tables --perfetto run.pftrace
    """
    if folder is None and perfetto is None:
        raise click.UsageError("Say what to write: --tables DIR, --perfetto FILE, or both.")
    if perfetto is not None and perfetto.suffix != _SUFFIX:
        raise click.BadParameter(
            f"expected a name that ends in {_SUFFIX}, found {perfetto}.", param_hint="--perfetto"
        )
    if perfetto is not None:
        refuse_an_input(perfetto, "--perfetto", [run])
        refuse_no_place(perfetto, "--perfetto")
    from moeprof.analyzers.laws import with_questions
    from moeprof.ingest import open_run
    from moeprof.reports.perfetto import write_perfetto
    from moeprof.reports.run.document import build
    from moeprof.tables.store import write_tables
    from moeprof.tables.trace import with_names, with_trust

    own_the_process()
    run = newest(run, session)
    with working("reading the run") as work:
        trace = open_run(run, session, hosts, tell=work.counting("reading the run"))
    trace = with_names(trace, names) if names else trace
    note: dict[str, Any] = {"schema": SCHEMA}
    if folder is not None:
        with working("writing the tables"):
            # By name, too, as others read the tables, who know no needs.
            laws = tuple(map(with_questions, trace.trust))
            tables = write_tables(with_trust(trace, laws), folder)
        note |= _note(folder, tables)
        click.echo(folder)
    if perfetto is not None:
        with working("writing the Perfetto trace") as work:
            tell = work.counting("writing the Perfetto trace")
            written = write_perfetto(trace, perfetto, tell)
        size = {"bytes": perfetto.stat().st_size}
        note["perfetto"] = {"path": str(perfetto), **size, **asdict(written)}
        click.echo(perfetto)
    damage = said_of_damage(build(trace, {}))
    if _is_read():
        for line in (*_words(note), *([f"figures are withheld: {damage}"] if damage else [])):
            click.echo(f"moeprof: {line}", err=True)
    else:
        click.echo(json.dumps(note), err=True)
    if damage:
        ctx.exit(EXIT_PARTIAL)


def _is_read() -> bool:
    """Whether a person reads stderr: it is a terminal."""
    return sys.stderr.isatty()


def _note(folder: Path, tables: Sequence[StoredTable]) -> dict[str, object]:
    rows = [{"name": t.name, "rows": t.rows, "bytes": t.size_bytes} for t in tables]
    total = sum(table.size_bytes for table in tables)
    return {"path": str(folder), "bytes": total, "tables": rows}


def _words(note: dict[str, Any]) -> list[str]:
    """The document for a reader: what was written, how much of it, and what it lacks."""
    lines = []
    if "tables" in note:
        rows = sum(table["rows"] for table in note["tables"])
        told = f"{len(note['tables'])} tables, {rows:,} rows, {format_bytes(note['bytes'])}"
        lines.append(f"{note['path']}: {told}")
    if "perfetto" in note:
        made = note["perfetto"]
        told = f"{made['slices']:,} slices, {made['flows']:,} arrows, {format_bytes(made['bytes'])}"
        lines.append(f"{made['path']}: {told}")
        withheld = [text.split(":")[0] for text in made["missing"] if ": withheld: " in text]
        lines += [f"not in it: {t}" for t in made["missing"] if ": withheld: " not in t]
        lines += [f"withheld, as a check failed: {', '.join(withheld)}"] if withheld else []
    from moeprof.answers.values import printable

    return [printable(line) for line in lines]
