"""Question: how do hints read in a terminal: what to do, what shows it, what it saves?"""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from moeprof.answers.document import Document, Value, rows
from moeprof.answers.names import printable
from moeprof.reports.terminal.lines import wrapped
from moeprof.units import format_bytes, format_ns, format_percent

_INDENT = 4
FEW = 3
"""Hints in an overview."""


def advice(document: Document, width: int, most: int | None = None) -> Text:
    """Hints as a numbered list of at most `width` columns; empty where there is none.

    Args:
        document: the findings.
        width: columns.
        most: how many hints to show, by default all.
    """
    hints = rows(document, "hints")
    shown = hints[:most]
    lines = [line for place, hint in enumerate(shown, 1) for line in _lines(place, hint, width)]
    if len(shown) < len(hints):
        lines.append(Text(f"… and {len(hints) - len(shown)} more: --only hints"))
    return Text("\n").join(lines)


def _lines(place: int, hint: Mapping[str, Value], width: int) -> list[Text]:
    name = printable(str(hint["hint"])).replace("_", " ").capitalize()
    title = f"{place:>2}. {name}{_saved(hint)}"
    lines = [Text(line) for line in wrapped(title, width, indent=" " * _INDENT)]
    lines[0].stylize("bold", _INDENT, _INDENT + len(name))
    lines += [Text(line) for line in _wrapped(str(hint["evidence"]), "", width)]
    lines += [Text(line) for line in _wrapped(str(hint["change"]), "→ ", width)]
    more = f"details: --only {hint['look']}"
    source = f"; source: {hint['source']}" if hint["source"] else ""
    lines += [Text(line, style="dim") for line in _wrapped(more + source, "", width)]
    return lines


def _saved(hint: Mapping[str, Value]) -> str:
    parts = []
    if isinstance(gain := hint["gain_ns"], int | float):
        share = hint["gain_share"]  # of a step: none where no step could be measured
        of_what = (
            f"a step ({format_percent(share)})"
            if isinstance(share, int | float)
            else "in the capture"
        )
        parts.append(f"{format_ns(gain)} {of_what}")
    if isinstance(gain := hint["gain_bytes"], int | float):
        parts.append(f"{format_bytes(gain)} a device")
    return f": saves at most {' and '.join(parts)}" if parts else ""


def _wrapped(text: str, lead: str, width: int) -> list[str]:
    indent = " " * _INDENT
    below = indent + " " * len(lead)
    return wrapped(printable(text), width, first=indent + lead, indent=below)
