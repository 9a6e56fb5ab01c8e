"""Question: how is a name out of a trace written so that it stays a name?

Op and scope names come from programs that moeprof does not control: they may hold escape
sequences for a terminal, marks that reverse the reading direction, or 40 kB of template text.
"""

from __future__ import annotations

import unicodedata

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
