"""Question: how does a table fit the columns of a terminal?

Text is cut in its middle, never a figure. What still does not fit is left out by column, from the
right, and the line below names what was left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich.text import Text

from moeprof.reports.document import ColumnInfo, Value
from moeprof.reports.names import shortened
from moeprof.reports.story import numbers
from moeprof.reports.values import heading, written

_GAP = 2
_LEAST_TEXT = 12


def drawn_grid(
    columns: Sequence[ColumnInfo], rows: Sequence[Mapping[str, Value]], width: int
) -> list[Text]:
    """Lines of at most `width` columns: headings, one line per row, and what was left out."""
    cells = {
        c["name"]: [
            heading(c["name"], c["unit"]),
            *(written(row[c["name"]], c["unit"]) for row in rows),
        ]
        for c in columns
    }
    figures = {c["name"] for c in columns if numbers([row[c["name"]] for row in rows])}
    wanted = {name: min(width, max(map(len, texts))) for name, texts in cells.items()}
    widths = _fitted(wanted, figures, width)
    lines = [
        "  ".join(_padded(cells[name][line], widths[name], name in figures) for name in widths)
        for line in range(len(rows) + 1)
    ]
    left_out = [texts[0] for name, texts in cells.items() if name not in widths]
    drawn = [Text(line.rstrip(), style="bold" if n == 0 else "") for n, line in enumerate(lines)]
    if left_out:
        told = f"Too wide for this terminal: {', '.join(left_out)}. --json has every column."
        drawn += [Text(line, style="dim") for line in textwrap.wrap(told, width)]
    return drawn


def _fitted(wanted: dict[str, int], figures: set[str], width: int) -> dict[str, int]:
    """Widths that fit: text columns shrink first, then columns go, from the right."""
    names = list(wanted)
    while names:
        over = sum(wanted[n] for n in names) + _GAP * (len(names) - 1) - width
        slack = {n: max(0, wanted[n] - _LEAST_TEXT) for n in names if n not in figures}
        if over <= sum(slack.values()):
            return _shrunk({n: wanted[n] for n in names}, slack, max(0, over))
        names.pop()
    return {}


def _shrunk(widths: dict[str, int], slack: dict[str, int], over: int) -> dict[str, int]:
    """Take `over` columns away from the text columns, each time from the widest."""
    for _ in range(over):
        widest = max((n for n in slack if slack[n] > 0), key=lambda n: widths[n])
        widths[widest] -= 1
        slack[widest] -= 1
    return widths


def _padded(text: str, width: int, is_figure: bool) -> str:
    return f"{text:>{width}}" if is_figure else f"{shortened(text, width):<{width}}"
