"""Question: where may a command write, how wide is what it prints to, what are rows in CSV?

COLUMNS, where it is set to a number, is the width of a terminal and of a pipe alike. Without it a
terminal has its own width, and a pipe has no end: what a program or a pager reads is whole.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.errors import MoeprofError

if TYPE_CHECKING:
    from rich.text import Text

    from moeprof.answers.document import ColumnInfo, Value


def refuse_other_than_a_page(path: Path, option: str, inputs: Iterable[Path | str] = ()) -> None:
    """A slip of the hand must not replace a profile or a run's record by a page.

    Raises:
        click.BadParameter: the name is not one of a page, or `path` is one of `inputs`; wrong
            usage.
        MoeprofError: nothing can be written there.
    """
    if not path.name:
        raise click.BadParameter(
            "expected a name that ends in .html, found an empty one.", param_hint=option
        )
    if path.suffix.lower() not in (".html", ".htm"):
        raise click.BadParameter(
            f"expected a name that ends in .html, found {path}.", param_hint=option
        )
    refuse_an_input(path, option, inputs)
    refuse_no_place(path, option)


def refuse_an_input(path: Path, option: str, inputs: Iterable[Path | str]) -> None:
    """What is read must not be replaced by what is written, by whatever name or link.

    Raises:
        click.BadParameter: `path` is one of `inputs`; wrong usage.
    """
    for read in inputs:
        if isinstance(read, str):  # it lies in a store
            continue
        if path.exists() and read.exists() and path.samefile(read):
            raise click.BadParameter(
                f"expected a file of its own, found {path}, which is the input {read}.",
                param_hint=option,
            )


def refuse_no_place(path: Path, option: str) -> None:
    """A place that cannot be written is told before the work, not after it.

    Raises:
        MoeprofError: the folder of `path` is not there, or nothing may be written into it.
    """
    folder = path.parent
    if not folder.exists():
        found = f"no folder {folder}"
    elif not folder.is_dir():
        found = f"{folder}, which is no folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        found = f"the folder {folder}, into which nothing may be written"
    else:
        return
    raise MoeprofError(
        f"{path}: expected a place that can be written, found {found}. "
        f"Give another one with {option}"
    )


LEAST_WIDTH = 80
ENDLESS = 1 << 20
"""Columns of a pipe: more than any table has."""


@dataclass(frozen=True)
class Screen:
    """Columns that a table may take, and lines that are seen at once; None where nobody looks."""

    width: int
    height: int | None


def screen() -> Screen:
    """What standard output is."""
    given = os.environ.get("COLUMNS", "")
    width = int(given) if given.isascii() and given.isdigit() else 0
    if not sys.stdout.isatty():
        return Screen(max(width, LEAST_WIDTH) if width else ENDLESS, None)
    size = shutil.get_terminal_size()
    return Screen(max(width or size.columns, LEAST_WIDTH), size.lines)


def show(text: Text) -> None:
    """Print lines as they are, in colour where a terminal has any."""
    from rich.console import Console

    # a width of its own: rich prints nothing where COLUMNS is 0
    Console(highlight=False, width=LEAST_WIDTH).print(text, soft_wrap=True)


def csv_text(columns: Sequence[ColumnInfo], rows: Sequence[Mapping[str, Value]]) -> str:
    """A line of column names, as JSON has them and with their units, then a line per row.

    What is not known or withheld is empty; invisible characters of names are spelled out.
    """
    from moeprof.answers.values import printable

    def cell(value: Value) -> str | int | float:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return printable(value) if isinstance(value, str) else value

    names = [column["name"] for column in columns]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([cell(row[name]) for name in names] for row in rows)
    return text.getvalue()
