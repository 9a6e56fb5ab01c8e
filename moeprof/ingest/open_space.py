"""Question: which reader opens this XSpace?

The plain one.
"""

from __future__ import annotations

from pathlib import Path

from moeprof.ingest.damage import DamageLog
from moeprof.ingest.locate import read_bytes
from moeprof.ingest.python_space import open_python_space
from moeprof.ingest.space import Damage, Space


def open_space(file: Path | bytes) -> Space:
    """Open a profile file, packed with gzip or not, or the bytes of one.

    Raises:
        TraceError: the file cannot be read, is empty, or is plainly no profile.
    """
    data, problem = (file, "") if isinstance(file, bytes) else read_bytes(file)
    space = open_python_space(data)
    if problem:
        DamageLog(space.head).add("archive", 1, [Damage(len(data), problem)])
    return space
