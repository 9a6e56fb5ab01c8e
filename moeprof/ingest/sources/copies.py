"""Tells copies of one profile apart from the profiles of several processes."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from moeprof.ingest.sources.sessions import host_name

_NUMBERED = re.compile(r"-p\d+$")


def without_copies(files: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """`files` without those that are another one byte for byte, and a note on each left out.

    Two processes never write the same bytes: stamps differ. Of equal files the first stays; only
    files of one size are read for that. Files whose names number them as processes, ``-p0`` and
    ``-p1``, stay, as does one that cannot be read: for others to say what is wrong with them.
    """
    by_size: dict[tuple[int, str], list[Path]] = defaultdict(list)
    for file in files:
        number = _NUMBERED.search(host_name(file))
        by_size[_size(file), number.group() if number else ""].append(file)
    copies: dict[Path, Path] = {}
    for (size, _), alike in by_size.items():
        first: dict[str, Path] = {}
        for file in alike if len(alike) > 1 and size > 0 else ():
            original = first.setdefault(_digest(file), file)
            if original != file:
                copies[file] = original
    notes = tuple(f"{copy.name} is a copy of {one.name}: left out" for copy, one in copies.items())
    return [file for file in files if file not in copies], notes


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return str(file)
