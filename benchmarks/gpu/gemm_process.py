"""Question: how do contestants in processes of their own take turns on one GPU?

A compiler that tunes a peer for minutes cannot be interrupted from inside, but a process can be
ended: whoever is not ready within the limit is named and loses that shape, not the run. Requests
and answers are lines of JSON. While a pass is prepared all work at the same time (Pallas' tile is
chosen beside the others); then only one computes at a time.

    python gemm_process.py KIND SHAPE      the other side, started by `ContestantProcess`
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gemm_contestants import KINDS, Prepared
from gpu.gemm_shapes import Shape
from gpu.timing import Sample, telling_line

# A sample is some calls of at most some seconds each; only a hang takes longer.
SAMPLE_LIMIT_S = 60.0


class ContestantProcess:
    """One kind with one shape; says why where it is gone."""

    def __init__(self, kind: str, shape: Shape) -> None:
        """Starts it; nothing is waited for."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, kind, json.dumps(asdict(shape))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.kind = kind
        self.gone = ""
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask_to_prepare(self, which: str) -> None:
        """Begins; `prepared` waits for it."""
        if not self.gone:
            self._send({"prepare": which})

    def prepared(self, ends: float, limit_s: float) -> Prepared:
        """Samples of what was prepared, or why there are none, by the monotonic time ``ends``.

        ``limit_s`` is what the reason names.
        """
        try:
            answer = self._answer(ends - time.monotonic(), f"was not ready within {limit_s:g} s")
        except RuntimeError as error:
            return Prepared(failed={self.kind: str(error)})
        samples = {name: self._sample_of(name) for name in answer["ready"]}
        return Prepared(samples, answer["failed"], answer["notes"])

    def close(self) -> None:
        """Ends it, at once if need be."""
        with contextlib.suppress(ProcessLookupError):  # its children too, where it is gone
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what was not read goes with it
                pipe.close()

    def _sample_of(self, name: str) -> Sample:
        def sample(calls: int) -> float:
            self._send({"sample": name, "calls": calls})
            answer = self._answer(SAMPLE_LIMIT_S, f"gave no sample within {SAMPLE_LIMIT_S:g} s")
            if "wrong" in answer:
                raise RuntimeError(answer["wrong"])
            return float(answer["seconds"])

        return sample

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the answer says how it ended
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _answer(self, limit_s: float, late: str) -> dict[str, Any]:
        if self.gone:
            raise RuntimeError(self.gone)
        try:
            line = self._answers.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            self.gone = late
            self.close()
            raise RuntimeError(self.gone) from None
        if not line:
            self.gone = f"its process ended with status {self._process.wait()}"
            raise RuntimeError(self.gone)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")


def prepare_all(processes: list[ContestantProcess], which: str, limit_s: float) -> Prepared:
    """All at the same time, as most of it is compiling on the host; what is late is ended."""
    for process in processes:
        process.ask_to_prepare(which)
    ends = time.monotonic() + limit_s
    together = Prepared()
    for process in processes:
        one = process.prepared(ends, limit_s)
        together.samples |= one.samples
        together.failed |= one.failed
        together.notes |= one.notes
    return together


def serve(kind: str, shape: Shape, answer: Callable[[dict[str, Any]], None]) -> None:
    """The other side: an answer per line of stdin."""
    holder = None
    prepared = Prepared()
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            try:
                holder = holder or KINDS[kind](shape)
                prepared = holder.prepare(request["prepare"])
            except Exception as error:  # no GPU, or no room: said, not raised
                prepared = Prepared(failed={kind: telling_line(error)})
            ready = list(prepared.samples)
            answer({"ready": ready, "failed": prepared.failed, "notes": prepared.notes})
            continue
        try:
            answer({"seconds": prepared.samples[request["sample"]](request["calls"])})
        except Exception as error:  # a kernel that fails later
            answer({"wrong": telling_line(error)})


def main() -> None:
    """Answers go to what was stdout; whatever a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    serve(sys.argv[1], Shape(**json.loads(sys.argv[2])), answer)


if __name__ == "__main__":
    main()
