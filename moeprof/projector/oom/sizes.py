"""Question: how many bytes does a size in a runtime's message stand for?

XLA writes ``226.26GiB`` or ``6291456 bytes``, TPU's compiler ``36.59G``, where G is 2^30; with both
forms side by side the exact one counts.
"""

from __future__ import annotations

import re

SIZE = r"-?[\d,]+(?:\.\d+)?\s?(?:[KMGTPE]i?B?|B|bytes?)\b"
"""One size, as a part of other patterns."""

_SIZE = re.compile(r"(-?)([\d,]+(?:\.\d+)?)\s?([KMGTPE]?)(i?)(B|bytes?)?\b")
_EXACT = re.compile(r"\(\s*([\d,]+)\s?(?:bytes|B)\)")
_POWERS = "KMGTPE"
_MOST_BYTES = 1 << 60


def size_bytes(text: str) -> int | None:
    """The first size in `text`; None where there is none, or none that a memory could have.

    ``KB`` and ``GB`` are decimal.
    """
    size = _size(text)
    return size if size is not None and abs(size) < _MOST_BYTES else None


def _size(text: str) -> int | None:
    if exact := _EXACT.search(text):
        return int(exact[1].replace(",", ""))
    found = _SIZE.search(text)
    if found is None:
        return None
    sign, number, prefix, binary, unit = found.groups()
    is_decimal = prefix and unit and not binary
    base = 1000 if is_decimal else 1024
    power = _POWERS.index(prefix) + 1 if prefix else 0
    return round(float(number.replace(",", "")) * float(base**power)) * (-1 if sign else 1)
