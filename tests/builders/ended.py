"""Run folders of runs that died or ran out of memory, as `moeprof capture` leaves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

GIB = 1 << 30


def write_record(
    run: Path,
    *,
    problems: Sequence[Sequence[str]],
    codes: Sequence[int],
    seconds: float,
    expected: int | None = None,
) -> Path:
    """``RUN/meta.json`` of processes on hosts c0, c1, …, each of 4 devices, nothing recorded."""
    run.mkdir(parents=True, exist_ok=True)
    argv = ["python3", "pretrain.py", "--layers=4"]
    processes = [
        {
            "host": f"c{place}",
            "process_index": place,
            "devices": [
                {"id": 4 * place + d, "kind": "AMD Instinct MI300X", "platform": "gpu"}
                for d in range(4)
            ],
            "files": [],
            "window": None,
            "windows": [],
            "problems": list(said),
            "argv": argv,
            "exit_code": code,
        }
        for place, (said, code) in enumerate(zip(problems, codes, strict=True))
    ]
    meta = {
        "schema": "moeprof.run/1",
        "command": "python pretrain.py --layers=4",
        "argv": argv,
        "exit_code": next((code for code in codes if code), 0),
        "duration_s": seconds,
        "status": "empty",
        "versions": {"jax": "0.11.2"},
        "expected_processes": len(codes) if expected is None else expected,
        "processes": processes,
    }
    (run / "meta.json").write_text(json.dumps(meta))
    return run


def write_message(run: Path, *, asked: float, in_use: float, limit: float, device: int) -> Path:
    """``RUN/oom.txt`` of one device's pool; sizes in GiB."""
    run.mkdir(parents=True, exist_ok=True)
    size = round(asked * GIB)
    (run / "oom.txt").write_text(
        f"W x/bfc_allocator.cc:501] Allocator (GPU_{device}_bfc) ran out of memory trying to "
        f"allocate {asked:.2f}GiB (rounded to {size})requested by op\n"
        f"Limit:          {round(limit * GIB)}\nInUse:          {round(in_use * GIB)}\n"
        f"jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
        f"{size} bytes.\n"
    )
    return run
