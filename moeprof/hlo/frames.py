"""Lines of the user's program that led to an instruction, as values and as text."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple


class Frame(NamedTuple):
    """One line of the user's program that led to an instruction."""

    file: str
    line: int
    function: str


Frames = tuple[Frame, ...]
"""Innermost first."""


def frames_text(frames: Iterable[Frame]) -> str:
    """``file:line:function`` per line."""
    return "\n".join(f"{file}:{line}:{function}" for file, line, function in frames)


@functools.lru_cache(maxsize=1 << 13)
def parse_frames(text: str) -> Frames:
    """What `frames_text` wrote."""
    return tuple(map(_frame, text.splitlines()))


def _frame(line: str) -> Frame:
    place, _, function = line.rpartition(":")
    file, _, number = place.rpartition(":")
    return Frame(file, int(number) if number.isdecimal() and len(number) < 20 else 0, function)
