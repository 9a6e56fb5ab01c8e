"""Question: how fast is MaxText's training on these GPUs by each of its paths, and by our kernels?

    python benchmarks/gpu/maxtext_paths.py [--devices 2] [--case kernels] [--out FILE.json]

The model of `whole_runs.py`, its experts over all GPUs, trained on synthetic data in a process per
path: with a capacity of 1.25, dropless as MaxText has it (`ragged_dot`), and dropless on moeprof's
kernels (`examples/maxtext_kernels.py`). Figures are MaxText's own metrics: tokens per second and
device over the median step after the first `WARM`, and losses. Tokens that a capacity drops cost no
time, so its speed is of less work; the others multiply every row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, count_gpus, write_result
from gpu.machine import gpu_machine
from gpu.whole_runs import MAXTEXT_MODEL, ROOT, TRAIN, ended, maxtext_base, why_absent

RESULTS = Path(__file__).parents[1] / "results"
LIMIT_S = 160
STEPS, WARM = 40, 10
KERNELS = (str(ROOT / "examples" / "maxtext_kernels.py"),)
CASES: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "capacity": (TRAIN, {"sparse_matmul": "False", "capacity_factor": 1.25}),
    "kernels": (KERNELS, {"sparse_matmul": "True"}),
    "ragged": (TRAIN, {"sparse_matmul": "True"}),
}


def trained(name: str, devices: int, limit_s: float) -> dict[str, Any]:
    """What MaxText's metrics say of a path."""
    program, own = CASES[name]
    options = {**MAXTEXT_MODEL, **own, "ici_expert_parallelism": devices}
    options |= {"steps": STEPS, "metrics_file": "metrics.jsonl", "learning_rate": 3e-4}
    words = [*program, maxtext_base(), *(f"{key}={value}" for key, value in options.items())]
    with tempfile.TemporaryDirectory() as text:
        _, failed = ended([sys.executable, *words], limit_s, Path(text))
        if failed:
            return {"failed": failed}
        lines = (Path(text) / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    steps = [row["perf/step_time_seconds"] for row in rows]
    losses = [row["learning/loss"] for row in rows]
    tokens = MAXTEXT_MODEL["per_device_batch_size"] * MAXTEXT_MODEL["max_target_length"]
    median = statistics.median(steps[WARM:])
    return {
        "steps": len(rows),
        "step_s": round(median, 5),
        "tokens_s_device": round(tokens / median, 1),
        "losses": [losses[0], losses[len(losses) // 2], losses[-1]],
        "steps_s": [round(one, 5) for one in steps],
    }


def main() -> int:
    """Train by every path, print a line each and write; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=tuple(CASES))
    parser.add_argument("--devices", type=int, help="default: all that are here")
    parser.add_argument("--limit-s", type=float, default=480, help="no path goes on after this")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_maxtext_paths.json")
    asked = parser.parse_args()
    devices = asked.devices or max(count_gpus(), 1)
    begin(parser.prog, devices, asked.out)
    reason, ends = why_absent("maxtext"), time.monotonic() + asked.limit_s
    cases: dict[str, Any] = {}
    for name in asked.case or CASES:
        left = min(LIMIT_S, ends - time.monotonic())
        cases[name] = {"skipped": reason} if reason else trained(name, devices, left)
        print(name, {k: v for k, v in cases[name].items() if k != "steps_s"}, flush=True)
        head = {"machine": gpu_machine(), "devices": devices}
        write_result(asked.out, {**head, "cases": cases})
    return sum("failed" in row for row in cases.values())


if __name__ == "__main__":
    sys.exit(main())
