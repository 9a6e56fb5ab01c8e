"""Recorded XSpace files without some of what the profiler may not record: stats under other names.

A stat whose name is not known is not there for a reader. The other name is as long, so that all
lengths in the file stay true.
"""

from __future__ import annotations

import gzip
from pathlib import Path

ANNOTATIONS = ("step_num",)
RUN_IDS = ("run_id",)
FLOWS = ("_p", "_c")
LAUNCHES = ("correlation_id",)


def without(file: Path, stats: tuple[str, ...], target: Path) -> Path:
    """`file` as `target`, without these stats."""
    data = file.read_bytes()
    data = gzip.decompress(data) if file.name.endswith(".gz") else data
    for name in stats:
        known, other = _name(name), _name(f"~{name[1:]}")
        assert known in data or name in FLOWS, f"{file} has no stat {name}"
        data = data.replace(known, other)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return target


def _name(text: str) -> bytes:
    """A name as the metadata of a stat holds it: field 2."""
    return b"\x12" + bytes([len(text)]) + text.encode()
