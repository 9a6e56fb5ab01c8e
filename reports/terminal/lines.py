"""Question: where does a text break into the lines of a terminal?

Between words, but never between a figure and its unit, nor inside a name with hyphens.
"""

from __future__ import annotations

import re
import textwrap

WIDTH = 80
"""Columns of a terminal that prose takes at most."""
_UNITS = "%|ns|µs|ms|s|B|KiB|MiB|GiB|TiB|GB/s|TB/s|TFLOP/s|FLOP|GFLOP|×"
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))")
_KEPT = "\u00a0"
"""A space that `textwrap` does not break at."""


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
