"""Question: what did `moeprof capture` write down about a run?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

from moeprof.errors import TraceError

RUN_SCHEMA = "moeprof.run/"


class RunRecord(TypedDict):
    """The part of ``meta.json`` that a report shows; None where it was not written.

    `status` is complete, partial or empty: whether every window holds what was asked for.
    """

    command: str | None
    exit_code: int | None
    window: str | None
    status: str | None
    problems: list[str]


def is_run_folder(path: Path) -> bool:
    """Whether `moeprof capture` made this folder: only there may a report be put."""
    return _read_meta(path) is not None


def read_record(path: str) -> RunRecord | None:
    """The record of the run folder at `path`, None where `path` is not one of ours.

    Raises:
        TraceError: there is a ``meta.json`` that is not JSON.
    """
    meta = _read_meta(Path(path))
    if meta is None:
        return None
    return {
        "command": _text(meta.get("command")),
        "exit_code": _integer(meta.get("exit_code")),
        "window": _text(meta.get("window")),
        "status": _text(meta.get("status")),
        "problems": _problems(meta.get("processes")),
    }


def _read_meta(run: Path) -> dict[str, object] | None:
    path = run / "meta.json"
    if not path.is_file():
        return None
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TraceError(f"{path}: expected JSON, found {error}. Remove it to go on") from error
    if not isinstance(meta, dict) or not str(meta.get("schema", "")).startswith(RUN_SCHEMA):
        return None
    return meta


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _problems(processes: object) -> list[str]:
    """What every process says went wrong, each text once."""
    found: dict[str, None] = {}
    for process in processes if isinstance(processes, list) else []:
        for problem in process.get("problems", []) if isinstance(process, dict) else []:
            found[str(problem)] = None
    return list(found)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None
