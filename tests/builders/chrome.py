"""JSON traces as JAX and PyTorch's profiler write them; times in microseconds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


def named(pid: object, name: str, tid: object = None) -> Event:
    """What names a process, or a thread of it."""
    where = {} if tid is None else {"tid": tid}
    what = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "pid": pid, **where, "name": what, "args": {"name": name}}


def piece(pid: object, tid: object, name: str, ts: float, dur: float, /, **args: object) -> Event:
    """An event of any process."""
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


@dataclass(frozen=True)
class Rank:
    """One process of a run with a device, as it would be in a file of its own.

    ``steps`` steps begin every ``every_us``, the first at ``start_us``, each of ``kernels`` kernels
    of ``kernel_us``, one every ``apart_us``. Ids of launches count from ``first_id``.
    """

    gpu: object
    host: object
    kernel_us: float
    kernels: int = 6
    steps: int = 4
    start_us: float = 100
    every_us: float = 1000
    apart_us: float = 20
    first_id: int = 1
    first_step: int = 0

    def _launches(self) -> Iterator[tuple[int, int, float]]:
        """Id and place in the step of each launch, and when its kernel begins."""
        for number in range(self.steps * self.kernels):
            step, place = divmod(number, self.kernels)
            ts = self.start_us + self.every_us * step + 10 + self.apart_us * place
            yield self.first_id + number, place, ts

    def _step_starts(self) -> Iterator[tuple[int, float]]:
        for step in range(self.steps):
            yield self.first_step + step, self.start_us + self.every_us * step

    def jax(self, device: str = "/device:GPU:0", host: str = "/host:CPU") -> list[Event]:
        """As JAX writes it, behind these names."""
        found = [named(self.gpu, device), named(self.gpu, "Stream #5(Compute)", 5)]
        found += [named(self.host, host)]
        for step, ts in self._step_starts():
            length = 0.9 * self.every_us
            found.append(piece(self.host, 9, "train", ts, length, step_num=str(step)))
        for launch, place, ts in self._launches():
            told = {"correlation_id": str(launch)}
            found.append(piece(self.host, 8, "cuLaunchKernel", ts - 6, 2, **told))
            told |= {"hlo_module": "jit_step", "hlo_op": f"fusion.{place}"}
            found.append(piece(self.gpu, 5, f"fusion_{place}", ts, self.kernel_us, **told))
        return found

    def pytorch(self, device: int = 0, **told: object) -> list[Event]:
        """As PyTorch's profiler writes it; ``told`` stands among all arguments."""
        found: list[Event] = []
        for pid, tag in ((self.gpu, f"GPU {device}"), (self.host, "CPU")):
            found.append(named(pid, "python3"))
            found.append({**named(pid, ""), "name": "process_labels", "args": {"labels": tag}})
        for step, ts in self._step_starts():
            event = piece(self.host, 9, f"ProfilerStep#{step}", ts, 0.9 * self.every_us, **told)
            found.append({**event, "cat": "user_annotation"})
        for launch, place, ts in self._launches():
            args = {"correlation": launch, **told}
            call = piece(self.host, 9, "cudaLaunchKernel", ts - 6, 2, **args)
            args |= {"device": device, "stream": 7}
            work = piece(self.gpu, 7, f"gemm_{place}", ts, self.kernel_us, **args)
            found += [{**call, "cat": "cuda_runtime"}, {**work, "cat": "kernel"}]
        return found


def text(events: Sequence[Event], **others: object) -> str:
    """The whole trace, with keys before the events."""
    return json.dumps({"displayTimeUnit": "ns", **others, "traceEvents": [*names(), *events]})


def write(file: Path, content: str | bytes) -> Path:
    """Write a trace, packed where the name says so."""
    raw = content.encode() if isinstance(content, str) else content
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" else raw)
    return file
