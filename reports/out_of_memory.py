"""What the out-of-memory message in a run's folder says, in the figures that a report shows."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from moeprof.errors import TraceError
from moeprof.ingest.run import OOM_TEXT
from moeprof.reports.names import encodable


class OutOfMemory(TypedDict):
    """One failure: sizes in bytes, None where the message does not tell them.

    `sentence` says why there was no room, `memory` which memory it was, `state` how its pool was.
    """

    sentence: str
    verdict: str
    memory: str
    state: str
    devices: list[str]
    request_bytes: int | None
    limit_bytes: int | None
    in_use_bytes: int | None
    free_bytes: int | None
    excess_bytes: int | None


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
