"""`moeprof memory diff`: which buffers another compilation of a program holds at its peak."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli.findings import newest
from moeprof.cli.progress import working

if TYPE_CHECKING:
    from moeprof.tables.trace import Trace


@click.command("diff")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document, moeprof.memory_difference/1."
)
def command(base: Path, new: Path, as_json: bool) -> None:
    """Which buffers NEW holds at its memory peak that BASE does not, the most new first.

    BASE and NEW are XLA dump folders (XLA_FLAGS=--xla_dump_to=FOLDER, as text or as protos),
    single *.hlo.pb or *buffer-assignment.txt files, or what `moeprof analyze` takes. Buffers are
    matched by kind of tensor, part of the model and shape. Of a dump of several programs the one
    that needs most memory counts.

    Example:

        moeprof memory diff dump-before/ dump-after/
    """
    from moeprof.reports.memory.difference import build_difference, difference_json, difference_text

    read = (newest(base, None, (new,), ""), newest(new, None, (base,), ""))
    with working("reading the base program") as work:
        before = _opened(read[0])
        work.phase("reading the new program")
        document = build_difference(before, _opened(read[1]))
    if as_json:
        click.echo(difference_json(document))
        return
    from rich.console import Console

    Console(highlight=False).print(difference_text(document), soft_wrap=True)


def _opened(path: Path) -> Trace:
    from moeprof.ingest import open_run
    from moeprof.ingest.dump import is_dump, open_dump

    return open_dump(path) if is_dump(path) else open_run(path, as_named=True)
