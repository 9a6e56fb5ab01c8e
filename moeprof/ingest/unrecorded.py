"""What is known of a run that left no profile, as a `Trace` in which nothing was recorded.

A run that died, or ran out of memory, before its window was written still has the record of
`moeprof capture`, or the out-of-memory message alone. A law that failed withholds every figure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from moeprof.ingest.sources.run_record import (
    Ending,
    described_exit,
    described_seconds,
    endings_of,
    jax_version_of,
    read_meta,
    told,
)
from moeprof.ingest.trust.evidence import TIMED
from moeprof.tables.law import Law
from moeprof.tables.trace import FRAMES, Trace, TraceMeta

OOM_TEXT = "oom.txt"
LAW = "profile"
"""The law that fails where nothing was recorded."""
_ALL = (*TIMED, "receive_buffers", "memory", "expert_load")


def is_unrecorded(path: Path) -> bool:
    """Whether something is known of a run at `path`, beside its profile.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    return path.is_dir() and (read_meta(path) is not None or (path / OOM_TEXT).is_file())


def unrecorded(path: Path) -> Trace:
    """The trace of a run for which `is_unrecorded` holds, and which has no profile.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    meta = read_meta(path) or {}
    endings = endings_of(meta)
    rows = [row for row in _list(meta.get("processes")) if isinstance(row, dict)]
    devices = [d for row in rows for d in _list(row.get("devices")) if isinstance(d, dict)]
    platforms = [str(d["platform"]) for d in devices if d.get("platform")]
    empty = {name: schema.frame() for name, schema in FRAMES.items()}
    return Trace(
        meta=TraceMeta(
            path=str(path),
            platform=platforms[0] if platforms else "unknown",
            hosts=tuple(dict.fromkeys(ending.host for ending in endings if ending.host)),
            devices=len(devices),
            jax_version=jax_version_of(meta),
            events=0,
            run_folder=str(path),
        ),
        trust=(_law(meta, endings),),
        **empty,
    )


def told_of(path: Path) -> str:
    """What is known of the run at `path`, in one line, with the command that leads on."""
    meta = read_meta(path) or {}
    return _detail(path, meta, endings_of(meta))


def _law(meta: Mapping[str, object], endings: tuple[Ending, ...]) -> Law:
    expected = meta.get("expected_processes")
    processes = expected if isinstance(expected, int) else max(len(endings), 1)
    whose = f"any of {processes} processes" if processes > 1 else "the run"
    return Law(
        LAW,
        "fail",
        f"no profile of {whose} was recorded, so no figure can be known",
        _ALL,
        expected=processes,
        found=0,
        unit="profiles",
    )


def _detail(path: Path, meta: Mapping[str, object], endings: tuple[Ending, ...]) -> str:
    has_message = (path / OOM_TEXT).is_file()
    said = [text for text in told(endings) if not (has_message and "explain-oom" in text)]
    parts = [*said]
    code = meta.get("exit_code")
    if not endings and isinstance(code, int) and code:
        parts.append(f"the command ended with {described_exit(code)}")
    expected = meta.get("expected_processes")
    if isinstance(expected, int) and len(endings) < expected:
        parts.append(f"{len(endings)} of {expected} processes left a record")
    seconds = meta.get("duration_s")
    if isinstance(seconds, int | float):
        command = meta.get("command")
        name = f"`{command}`" if isinstance(command, str) else "the command"
        parts.append(f"{name} ran {described_seconds(seconds)}")
    if has_message:
        ask = shlex.join(["moeprof", "memory", "explain-oom", str(path)])
        parts.append(f"{OOM_TEXT} has an out-of-memory message: `{ask}` explains it")
    return "; ".join(parts) or "it says nothing of how it ended"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
