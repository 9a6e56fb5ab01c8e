"""Question: how wide and how tall is what a command prints to, and what are rows in CSV?

COLUMNS, where it is set to a number, is the width of a terminal and of a pipe alike. Without it a
terminal has its own width, and a pipe has no end: what a program or a pager reads is whole.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from moeprof.answers.document import ColumnInfo, Value

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
    from moeprof.answers.names import printable

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
