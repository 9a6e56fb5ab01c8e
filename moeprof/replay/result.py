"""Question: how long does a replay take on this machine?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 600.0
_ERROR = re.compile(r"[\w.]+(Error|Exception|Exit)\b")


@dataclass(frozen=True)
class Replayed:
    """What a script reports: ``median_ns`` of a call and its ``ratio`` to the trace.

    ``empty_call_ns`` is a call that computes one number: a time of less than twice that is mostly
    launching and has no ratio, as one of other devices has none; ``remark`` says so.
    """

    median_ns: int
    calls: int
    platform: str
    device: str
    jax: str
    ratio: float | None
    empty_call_ns: int
    remark: str


def replayed(script: Path, timeout_s: float = _TIMEOUT_S) -> Replayed | str:
    """Run a script in a process of its own, with this interpreter.

    A text says why there is no result.
    """
    try:
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {timeout_s:.0f} s"
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
        return f"it ended with exit code {done.returncode}: {' '.join(said[-1:])[:300]}"
    return Replayed(**json.loads(done.stdout.splitlines()[-1]))
