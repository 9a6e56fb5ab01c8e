"""Question: what does a pipeline layout such as ``Et*3|(tt|)*29m|L`` say?

The notation of Megatron-LM's ``--pipeline-model-parallel-layout``: E embedding, t transformer
layer, m module of multi-token prediction, L head and loss; ``|`` ends a chunk, ``*N`` repeats a
letter or a group in parentheses, commas and blanks mean nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from moeprof.errors import SpecError

MOST_LETTERS = 100_000
_LETTERS = "EtmL|"
_INNERMOST = re.compile(r"\(([^()]*)\)(?:\*(\d{1,6}))?")
_REPEATED = re.compile(rf"([{re.escape(_LETTERS)}])\*(\d{{1,6}})")


class ChunkLayout(NamedTuple):
    """How many of each letter one chunk holds."""

    embeddings: int
    layers: int
    mtp_layers: int
    heads: int


def read_layout(text: str) -> tuple[ChunkLayout, ...]:
    """The chunks of a layout, in the order in which a token passes them.

    Raises:
        SpecError: another letter, an unpaired parenthesis, a ``*`` without number or what to
            repeat, or more than `MOST_LETTERS` letters.
    """
    flat = "".join(text.replace(",", "").split())
    while True:
        opened, groups = _INNERMOST.subn(
            lambda group: _times(text, _plain(text, group[1]), group[2]), flat
        )
        if not groups:
            break
        flat = opened
    flat = _plain(text, flat)
    chunks = flat.split("|")
    return tuple(ChunkLayout(*(chunk.count(letter) for letter in "EtmL")) for chunk in chunks)


def _plain(text: str, part: str) -> str:
    """A part without parentheses, its repeated letters written out."""
    plain = _REPEATED.sub(lambda found: _times(text, found[1], found[2]), part)
    wrong = next((letter for letter in plain if letter not in _LETTERS), None)
    if wrong is not None:
        raise SpecError(
            f"pipeline layout {text!r}: expected E, t, m, L, |, (…) and *N, found {wrong!r}."
        )
    return plain


def _times(text: str, part: str, count: str | None) -> str:
    number = int(count or 1)
    if len(part) * number > MOST_LETTERS:
        raise SpecError(
            f"pipeline layout {text!r}: expected at most {MOST_LETTERS:,} letters, found more."
        )
    return part * number
