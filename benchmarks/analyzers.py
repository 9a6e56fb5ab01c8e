"""Question: how long do the analyzers take, each alone and all together, once a profile is read?

    python benchmarks/analyzers.py [--rounds 5] [PROFILE…]

Without PROFILE four are made: 300,000 kernels with their launches (600,000 events), half and four
times as many, to see that costs grow as the events do, and 37,600 kernels among 525,000 Python
calls. Each round is a process of its own, which imports the analyzers, reads the profile, and asks
every question once, in their order; what several questions share counts to the first that
needs it. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ingest import CASES, big_xspace
from machine import machine

RESULTS = Path(__file__).parent / "results"
MADE = {
    "kernels_300k": lambda: big_xspace.gpu_profile(devices=8, steps=5, kernels=3750),
    "kernels_600k": CASES["kernels_600k"].make,
    "kernels_2400k": lambda: big_xspace.gpu_profile(devices=8, steps=40, kernels=3750),
    "mixed_600k": CASES["mixed_600k"].make,
}


def once(file: Path) -> dict[str, int]:
    """Nanoseconds of wall time by analyzer, of reading the profile, and its device events."""
    from moeprof.analyzers.registry import all_questions
    from moeprof.ingest import open_run

    questions = all_questions()  # imports them
    spent: dict[str, int] = {}
    before = time.perf_counter_ns()
    trace = open_run(file)
    spent["open_run"] = time.perf_counter_ns() - before
    for question in questions:
        before = time.perf_counter_ns()
        question.run(trace)
        spent[question.name] = time.perf_counter_ns() - before
    spent["all_analyzers"] = sum(spent[question.name] for question in questions)
    return {**spent, "device_events": len(trace.events), "events": trace.meta.events}


def measure(file: Path, rounds: int) -> dict[str, float]:
    """Medians of `once` over processes of their own."""
    runs = [
        json.loads(subprocess.check_output([sys.executable, __file__, "--once", str(file)]))
        for _ in range(rounds)
    ]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    """Measure, print a table in ms, and write the figures to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profiles", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "analyzers.json")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once)))
        return
    facts = machine("pandas", "numpy")
    with tempfile.TemporaryDirectory() as folder:
        files = {file.name: file for file in options.profiles} or {
            name: Path(folder) / f"{name}.xplane.pb" for name in MADE
        }
        for name in () if options.profiles else MADE:
            files[name].write_bytes(MADE[name]())
        found = {name: measure(file, options.rounds) for name, file in files.items()}
    for name, figures in found.items():
        print(
            f"{name}: {figures['events']:,.0f} events, {figures['device_events']:,.0f} on devices"
        )
        for part, value in figures.items():
            if "events" not in part:
                print(f"  {part:<18} {value / 1e6:8.1f} ms")
    document = {"machine": facts, "rounds": options.rounds, "unit": "ns", "profiles": found}
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
