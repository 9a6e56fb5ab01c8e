"""A profile of a program on two devices of a CPU, its file, and the verdicts on it."""

from __future__ import annotations

from pathlib import Path

from builders.hlo import computation, hlo_proto, op
from builders.xspace import host, line, metadata, thunk, xspace

from moeprof.tables.trace import Trace

PROGRAM = hlo_proto(
    computation("body", op("add", "add", "f32[8]")),
    computation(
        "main", op("while", "while", "f32[8]", called=("body",)), op("a2a", "all-to-all", "f32[8]")
    ),
)


def step(run_id: int, at: int, device: int = 0):
    """One execution: a loop of 100 ns with 60 ns of body, then an exchange of 50 ns."""
    more = {"run_id": run_id, "device_ordinal": device}
    return (
        thunk("while", at, 100, **more),
        thunk("add", at + 20, 60, **more),
        thunk("a2a", at + 100, 50, **more),
    )


def cpu_file(*extra, runs: int = 3) -> bytes:
    work = [e for i in range(runs) for e in (*step(i, 1000 * i + 10), *step(i, 1000 * i + 20, 1))]
    return xspace(metadata(p7=PROGRAM), host(line("pool", *work), *extra))


def write(folder: Path, data: bytes, name: str = "node0.xplane.pb") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def verdicts(trace: Trace) -> dict[str, str]:
    return {check.check: check.verdict for check in trace.trust}
