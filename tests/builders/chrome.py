"""JSON traces as JAX and PyTorch's profiler write them; times in microseconds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

GPU, HOST = 1, 701
STREAM = 24

Event = dict[str, object]


def names() -> list[Event]:
    """What names the processes and threads of a run on one GPU."""
    return [
        {"ph": "M", "pid": GPU, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {
            "ph": "M",
            "pid": GPU,
            "tid": STREAM,
            "name": "thread_name",
            "args": {"name": "Stream #24(Compute)"},
        },
        {"ph": "M", "pid": HOST, "name": "process_name", "args": {"name": "/host:CPU"}},
    ]


def kernel(name: str, ts: object, dur: object = 1, /, **args: str) -> Event:
    """A kernel of program ``jit_step``; JAX writes every argument as text."""
    known = {"hlo_module": "jit_step", "hlo_op": name, **args}
    return {"ph": "X", "pid": GPU, "tid": STREAM, "ts": ts, "dur": dur, "name": name, "args": known}


def on_host(name: str, ts: object, dur: object = 1, /, **args: str) -> Event:
    """An event of the host."""
    return {"ph": "X", "pid": HOST, "tid": 9, "ts": ts, "dur": dur, "name": name, "args": args}


def text(events: Sequence[Event], **others: object) -> str:
    """The whole trace, with keys before the events."""
    return json.dumps({"displayTimeUnit": "ns", **others, "traceEvents": [*names(), *events]})


def write(file: Path, content: str | bytes) -> Path:
    """Write a trace, packed where the name says so."""
    raw = content.encode() if isinstance(content, str) else content
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" else raw)
    return file
