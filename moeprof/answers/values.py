"""Question: how is one value of the document written for a person?"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

from moeprof.units import format_bytes, format_count, format_flops, format_ns, format_percent

if TYPE_CHECKING:  # these bring pandas
    from moeprof.answers.document import ColumnInfo, Value

NOT_KNOWN = "not known"
NONE = "None in this trace."


def written(value: Value, unit: str) -> str:
    """`value` with its unit; ``not known`` for None, yes or no for a bool.

    Units that change the figure: ns (as ns, µs, ms or s), bytes (binary units), share (percent),
    count (thousands separated); a small rate takes a smaller unit. Any other unit is put behind the
    figure.
    """
    if value is None:
        return NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value)
    return _figure(value, unit)


SCALED_UNITS = ("ns", "bytes", "FLOP")
"""Units that `written` turns into larger ones: they stand in the cells, never in the heading."""

_FRACTIONS = ("share", "ratio")
_SMALLER_RATES = {
    "TFLOP/s": "GFLOP/s",
    "GFLOP/s": "MFLOP/s",
    "TB/s": "GB/s",
    "GB/s": "MB/s",
    "MB/s": "kB/s",
}
"""The next smaller unit of a rate, each a thousandth: 0.0059 GB/s read better as 5.9 MB/s."""


def heading(name: str, unit: str) -> str:
    """A column's name for people: ``per_step_ns`` is "per step", as its cells carry the unit."""
    ending = f"_{unit}" if unit in SCALED_UNITS else ""
    return name.removesuffix(ending).replace("_", " ")


def column_heading(column: ColumnInfo) -> str:
    """The heading that a column states, else the one that its name and unit make."""
    return column.get("heading") or heading(column["name"], column["unit"])


def cell_text(value: Value, name: str, unit: str) -> str:
    """A value below its heading: 2048 in ``worst_rows`` is "2,048", as the heading says rows.

    A share or ratio is no count of things, whatever its column is called.
    """
    is_said = unit not in (*SCALED_UNITS, *_FRACTIONS) and name.endswith(f"_{unit}")
    return written(value, "count" if is_said and isinstance(value, int | float) else unit)


def signed(change: float, write: Callable[[float], str]) -> str:
    """A change with its sign, as ``−38.1 ms`` or ``+5.0 %``; nothing has none."""
    sign = "+" if change > 0 else "−" if change < 0 else ""
    return f"{sign}{write(abs(change))}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a figure: bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def numbers(values: Sequence[Value]) -> bool:
    """Whether a column holds figures: no text and no bool, missing ones aside."""
    return all(value is None or is_number(value) for value in values)


def number(value: object) -> float:
    """A figure of a document; 0 where it is not known, as nothing is drawn or added up then."""
    return value if isinstance(value, int | float) else 0.0


def whole(value: object) -> int:
    """The same of a count or a size."""
    return int(number(value))


def _figure(value: float, unit: str) -> str:
    formats = {
        "ns": format_ns,
        "bytes": format_bytes,
        "FLOP": format_flops,
        "share": format_percent,
        "count": format_count,
    }
    if unit in formats:
        return formats[unit](value)
    while unit in _SMALLER_RATES and 0 < abs(value) < 0.1:
        value, unit = value * 1000, _SMALLER_RATES[unit]
    text = _plain_figure(value)
    return f"{text} {unit}" if unit and unit != "ratio" else text


def _plain_figure(value: float) -> str:
    """Integers whole, as they may be ids; other figures with four digits."""
    if isinstance(value, int):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:.3e}"


# How is a name out of a trace written so that it stays a name?
#
# Op and scope names come from programs that moeprof does not control: they may hold escape
# sequences for a terminal, marks that reverse the reading direction, or 40 kB of template text.

# Cc: control codes, Cf: invisible formatting (direction marks, zero-width), Cs: half a surrogate
# pair, Zl and Zp: line and paragraph separators.
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def encodable(text: str) -> str:
    """`text` with half surrogate pairs replaced, so that UTF-8 can hold it."""
    return text.encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    """`text` with every invisible character spelled out, as ``⟨U+001B⟩``."""
    if text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def shortened(text: str, width: int) -> str:
    """The first and last part of `text` in at most `width` characters, ``…`` where it is cut.

    Both ends stay, because op names differ at their end (``fusion.1``, ``fusion.2``).
    """
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    tail = width - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def _spelled(character: str) -> str:
    if unicodedata.category(character) in _INVISIBLE:
        return f"⟨U+{ord(character):04X}⟩"
    return character
