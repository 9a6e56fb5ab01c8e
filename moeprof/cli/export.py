"""`moeprof export`: a run in a form that other programs read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli.findings import EXIT_PARTIAL, is_partial
from moeprof.cli.selection import selects

if TYPE_CHECKING:
    from moeprof.tables.trace_json import StoredTable

SCHEMA = "moeprof.export/1"


@click.command("export")
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tables",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="New or empty folder for one Parquet file per table.",
)
@selects
@click.pass_context
def command(
    ctx: click.Context, run: Path, folder: Path, session: str | None, hosts: tuple[str, ...]
) -> None:
    """Write a run as Parquet tables, which every command takes in the place of the run.

    Columns, units and meanings stand in the files. The folder is printed on stdout; what was
    written goes to stderr as one JSON document, moeprof.export/1.

    Exit code 3: the input is damaged or partial; trace.json in the folder says what is missing.

    Example:

        moeprof export runs/train-2026-12-01T10-22-07 --tables tables
    """
    from moeprof.ingest import open_run
    from moeprof.reports.document import build
    from moeprof.tables.store import write_tables

    trace = open_run(run, session, hosts)
    click.echo(_note(folder, write_tables(trace, folder)), err=True)
    click.echo(folder)
    if is_partial(build(trace, {})):
        ctx.exit(EXIT_PARTIAL)


def _note(folder: Path, tables: Sequence[StoredTable]) -> str:
    rows = [{"name": t.name, "rows": t.rows, "bytes": t.size_bytes} for t in tables]
    total = sum(table.size_bytes for table in tables)
    return json.dumps({"schema": SCHEMA, "path": str(folder), "bytes": total, "tables": rows})
