"""Question: how long does a whole command take, from the shell's call to its end?

    python benchmarks/commands.py [--runs 15] [--out FILE]

Commands run in turns, each in a process of its own, with their output thrown away. Figures are
medians, minima and maxima of the wall clock, and the median of the CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import environment, machine

ROOT = Path(__file__).parents[1]
SMALL = "tests/data/gpu/sparse-gmm"
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "--help": ("-m", "moeprof", "--help"),
    "memory": ("-m", "moeprof", "memory", "--model", "deepseek_v3", "--ep", "64"),
    "analyze": ("-m", "moeprof", "analyze", SMALL),
}


def timed(words: tuple[str, ...]) -> tuple[float, float]:
    """Wall and CPU seconds of one command.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=environment())
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system
    return wall, cpu - before.children_user - before.children_system


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/commands.json")
    asked = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(asked.runs + 1):
        for name, words in COMMANDS.items():
            times[name].append(timed(words))
    rows: dict[str, Any] = {}
    for name, found in times.items():
        wall, cpu = ([one[at] for one in found[1:]] for at in (0, 1))  # the first compiles
        rows[name] = {
            "median_s": round(statistics.median(wall), 4),
            "min_s": round(min(wall), 4),
            "max_s": round(max(wall), 4),
            "cpu_s": round(statistics.median(cpu), 4),
        }
        print(f"{name:16} {rows[name]}")
    document = {"machine": machine(), "runs": asked.runs, "commands": rows}
    asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
