"""Question: how long does it take to tell which part of the step each instruction is?

    python benchmarks/classification.py [--rounds 5] [--runs 7] [CAPTURE…]

Without CAPTURE the two of MaxText in tests/data, each with a program of more than 10,000
instructions. A round is a process of its own with the garbage collector as Python starts it. It
reads the capture and classifies the largest program, which is made anew each time: once with
nothing remembered (``first``), then `runs` times (``again``; ``again_cpu`` is the processor's time
of the same, which other processes lengthen less). Figures are medians over the rounds, per 10,000
instructions too; the target is 0.25 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import machine

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
CAPTURES = tuple(sorted((ROOT / "tests/data/maxtext").glob("*.xplane.pb.gz")))
TARGET_S_PER_10K = 0.25


def once(file: Path, runs: int) -> dict[str, float]:
    """Seconds of the first run and the median of the others, and instructions of the program."""
    from moeprof.analyzers.classify import classify
    from moeprof.hlo.program import programs_in
    from moeprof.ingest import open_run

    hlo_ops = open_run(file).hlo_ops
    largest = int(hlo_ops["module"].value_counts().idxmax())
    spent: list[float] = []
    cpu: list[float] = []
    for _ in range(1 + runs):
        programs = programs_in(hlo_ops, [largest])
        before, cpu_before = time.perf_counter(), time.process_time()
        classes = classify(programs).pandas()
        cpu.append(time.process_time() - cpu_before)
        spent.append(time.perf_counter() - before)
    return {
        "first_s": spent[0],
        "again_s": statistics.median(spent[1:]),
        "again_cpu_s": statistics.median(cpu[1:]),
        "instructions": len(classes),
    }


def measure(file: Path, rounds: int, runs: int) -> dict[str, float]:
    """Medians of `once` over processes of their own, with seconds per 10,000 instructions."""
    command = [sys.executable, __file__, "--once", str(file), "--runs", str(runs)]
    found = [json.loads(subprocess.check_output(command)) for _ in range(rounds)]
    medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
    instructions = medians.pop("instructions")
    return {
        "instructions": int(instructions),
        **{name: round(value, 4) for name, value in medians.items()},
        **{f"{name}_per_10k": round(v * 1e4 / instructions, 4) for name, v in medians.items()},
        "slowest_again_s": round(max(one["again_s"] for one in found), 4),
    }


def main() -> None:
    """Measure, print, and write the figures to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", nargs="*", type=Path, default=CAPTURES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "classification.json")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once, options.runs)))
        return
    facts = machine("pandas", "numpy")
    found = {file.name: measure(file, options.rounds, options.runs) for file in options.captures}
    for name, figures in found.items():
        print(f"{name}: {figures}")
    document = {
        "machine": facts,
        "rounds": options.rounds,
        "runs": options.runs,
        "target_s_per_10k": TARGET_S_PER_10K,
        "captures": found,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
