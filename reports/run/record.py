"""Question: what does a run's folder tell beside its profile: the record of `moeprof capture`, and
the message of memory that ran out?
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moeprof.answers.document import OutOfMemory, RunRecord
from moeprof.answers.values import encodable
from moeprof.errors import TraceError
from moeprof.ingest.run import OOM_TEXT
from moeprof.ingest.sources.run_record import endings_of, read_meta


def is_run_folder(path: Path) -> bool:
    """Whether `moeprof capture` made this folder: only there may a report be put."""
    return read_meta(path) is not None


def read_whole(run: str) -> Mapping[str, object] | None:
    """All that ``meta.json`` in the folder `run` holds; None as of `read_record`.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    return read_meta(Path(run)) if run else None


def read_record(run: str) -> RunRecord | None:
    """The record in the folder `run`; None where capture did not make it, or `run` is empty.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    meta = read_whole(run)
    if meta is None:
        return None
    return {
        "command": _text(meta.get("command")),
        "exit_code": _integer(meta.get("exit_code")),
        "window": _text(meta.get("window")),
        "status": _text(meta.get("status")),
        "problems": _problems(meta.get("processes")),
        "kinds": _kinds(meta.get("processes")),
        "mesh": _sizes(meta.get("mesh")),
        "duration_s": _seconds(meta.get("duration_s")),
        "processes": [
            {
                "process": ending.process,
                "host": encodable(ending.host),
                "exit_code": ending.exit_code,
                "problems": [encodable(text) for text in ending.problems],
            }
            for ending in endings_of(meta)
        ],
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _problems(processes: object) -> list[str]:
    """What every process says went wrong, each text once."""
    found: dict[str, None] = {}
    for process in processes if isinstance(processes, list) else []:
        for problem in process.get("problems", []) if isinstance(process, dict) else []:
            found[str(problem)] = None
    return list(found)


def _kinds(processes: object) -> list[str]:
    """The kinds of all devices of all processes, each once."""
    found: dict[str, None] = {}
    for process in processes if isinstance(processes, list) else []:
        devices = process.get("devices") if isinstance(process, dict) else None
        for device in devices if isinstance(devices, list) else []:
            if isinstance(device, dict) and isinstance(device.get("kind"), str):
                found[device["kind"]] = None
    return list(found)


def _sizes(mesh: object) -> dict[str, int]:
    """The size of each axis; empty where no mesh was seen."""
    axes = mesh.items() if isinstance(mesh, dict) else ()
    return {str(axis): size for axis, size in axes if isinstance(size, int)}


def _seconds(value: object) -> float | None:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if isinstance(value, int | float) and is_one else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def read_out_of_memory(run: str) -> list[OutOfMemory]:
    """The failures that ``RUN/oom.txt`` tells of; none where it is not there, or not understood."""
    if not run or not (Path(run) / OOM_TEXT).is_file():
        return []
    from moeprof.projector.oom.capacity import capacity_of_run
    from moeprof.projector.oom.document import build_oom
    from moeprof.projector.oom.sources import read_oom

    path = Path(run)
    try:
        messages = build_oom(run, read_oom(path), capacity_of_run(path, None))["messages"]
    except TraceError:
        return []
    return [
        {
            "sentence": encodable(message["sentence"]),
            "verdict": message["verdict"],
            "memory": message["memory"],
            "state": message["state"],
            "devices": [encodable(device) for device in message["devices"]],
            "request_bytes": _size(message["request"]["size_bytes"]),
            "limit_bytes": _size(message["pool"]["limit_bytes"]),
            "in_use_bytes": _size(message["pool"]["in_use_bytes"]),
            "free_bytes": _size(message["pool"]["free_bytes"]),
            "excess_bytes": _size(message["request"]["excess_bytes"]),
        }
        for message in messages
    ]


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
