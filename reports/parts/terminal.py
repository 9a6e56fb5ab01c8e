"""Question: where does a text break into the lines of a terminal, and which columns of a table fit?

Text breaks between words, but never between a figure and its unit, nor inside a name with hyphens.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from moeprof.answers.values import cell_text, column_heading, numbers, printable, shortened

if TYPE_CHECKING:  # these bring pandas
    from moeprof.answers.document import ColumnInfo, Value

WIDTH = 80
"""Columns of a terminal that prose takes at most."""
_UNITS = "%|ns|µs|ms|s|B|KiB|MiB|GiB|TiB|GB/s|TB/s|TFLOP/s|FLOP|GFLOP|×"
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))")
_KEPT = "\u00a0"
"""A space that `textwrap` does not break at."""
_GAP = 2
_LEAST_TEXT = 12
_SHORT_TEXT = 18
_KEYS = 2
_PLACE = "source"
"""The column of file:line, whose end says most."""
_MEASURES = ("ns", "bytes", "GB/s", "share", "ratio")


def wrapped(text: str, width: int, *, first: str = "", indent: str = "") -> list[str]:
    """Lines of at most `width` columns, one at least; `first` stands before the first one,
    `indent` before the others.

    A word that is longer than a line is cut.
    """
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_KEPT, text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [line.replace(_KEPT, " ") for line in lines] or [first.rstrip()]


def listed(notes: Sequence[str], most: int | None = None) -> Text:
    """Notes below each other; of more than `most` the first ones, and how many others there are."""
    told = [
        line
        for note in notes[:most]
        for line in wrapped(printable(note), WIDTH, first=" - ", indent="   ")
    ]
    if most is not None and len(notes) > most:
        more = len(notes) - most
        told.append(f"… and {more} more notes: moeprof analyze has each with its question")
    return Text("\n".join(told))


def drawn_grid(
    columns: Sequence[ColumnInfo],
    rows: Sequence[Mapping[str, Value]],
    width: int,
    first: Sequence[str] = (),
) -> list[Text]:
    """Lines of at most `width` columns: headings, one line per row, and what was left out.

    Columns named in `first` are read first, and the last to be left out.
    """
    columns = sorted(
        columns, key=lambda c: first.index(c["name"]) if c["name"] in first else len(first)
    )
    cells = {
        c["name"]: [
            column_heading(c),
            *(cell_text(row[c["name"]], c["name"], c["unit"]) for row in rows),
        ]
        for c in columns
    }
    figures = {c["name"] for c in columns if numbers([row[c["name"]] for row in rows])}
    wanted = {name: min(width, max(map(len, texts))) for name, texts in cells.items()}
    order = list(dict.fromkeys([*first, *_by_weight(columns, wanted, figures)]))
    widths = _fitted(order, wanted, figures, width)
    lines = [
        "  ".join(_padded(cells[name][line], widths[name], name, figures) for name in widths)
        for line in range(len(rows) + 1)
    ]
    left_out = [texts[0] for name, texts in cells.items() if name not in widths]
    drawn = [Text(line.rstrip(), style="bold" if n == 0 else "") for n, line in enumerate(lines)]
    if left_out:
        told = f"Too wide for this terminal: {', '.join(left_out)}. --json has every column."
        drawn += [Text(line, style="dim") for line in wrapped(told, width)]
    return drawn


def _fitted(
    order: Sequence[str], wanted: dict[str, int], figures: set[str], width: int
) -> dict[str, int]:
    """The columns that fit, those that matter first, with widths in the order of the table.

    Text shrinks so that more of them do.
    """
    least = {n: w if n in figures else min(w, _LEAST_TEXT) for n, w in wanted.items()}
    kept: set[str] = set()
    used = -_GAP
    for name in order:
        if used + _GAP + least[name] <= width:
            kept.add(name)
            used += _GAP + least[name]
    widths = {name: wanted[name] for name in wanted if name in kept}
    slack = {name: wanted[name] - least[name] for name in widths}
    over = sum(widths.values()) + _GAP * (len(widths) - 1) - width
    return _shrunk(widths, slack, max(0, over))


def _by_weight(
    columns: Sequence[ColumnInfo], wanted: Mapping[str, int], figures: set[str]
) -> list[str]:
    """What a row is about, then times, sizes and shares, then short text, then the rest."""
    keys = [column["name"] for column in columns[:_KEYS]]
    measured = [c["name"] for c in columns if c["unit"] in _MEASURES and c["name"] in figures]
    short = [c["name"] for c in columns if wanted[c["name"]] <= _SHORT_TEXT]
    rest = [column["name"] for column in columns]
    return list(dict.fromkeys([*keys, *measured, *short, *rest]))


def _shrunk(widths: dict[str, int], slack: dict[str, int], over: int) -> dict[str, int]:
    """Take `over` columns away from the text columns, each time from the widest."""
    for _ in range(over):
        widest = max((n for n in slack if slack[n] > 0), key=lambda n: widths[n])
        widths[widest] -= 1
        slack[widest] -= 1
    return widths


def _padded(text: str, width: int, name: str, figures: set[str]) -> str:
    if name in figures:
        return f"{text:>{width}}"
    if name == _PLACE and len(text) > width:
        return f"…{text[len(text) - width + 1 :]}"
    return f"{shortened(text, width):<{width}}"
