"""Question: does compute-sanitizer find a bad access or a race in the GPU kernels?

    python benchmarks/gpu/sanitize.py [--out FILE.json] [--limit-s S] [--only TEXT]

memcheck and racecheck watch the programs that check the kernels without a framework
(native/stress/gpu.cmake). Every buffer of the products is an allocation of exactly its size, so
that a byte past its end is seen; those of the exchange are made once, for the largest round. A run
is clean where the tool counted nothing and the program ended well. Two planted faults come first: a
tool that does not count those counts nothing on this machine, and nothing after them is called
clean. Ends with the number of runs that are not as they should be.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result
from gpu.machine import gpu_machine

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
BUILD = ROOT / "build" / "gpu"
# The status of a sanitizer that counted something; no program of ours ends with it.
COUNTED = 86
_ROUNDS = re.compile(r"^ok: (\d+) of \d+ rounds", re.MULTILINE)
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


@dataclass(frozen=True)
class Watched:
    """One tool over one program of ``BUILD``; ``is_planted`` where it must count something."""

    name: str
    tool: str
    arguments: tuple[str, ...]
    program: str
    is_planted: bool = False

    @property
    def label(self) -> str:
        """The name of its log, and what ``--only`` looks in."""
        return f"{self.name.replace(' ', '-')}-{self.tool}"


def rounds(count: int, seconds: float, *more: str) -> tuple[str, ...]:
    """Arguments of a stress program that stops by itself before its limit."""
    return ("--rounds", str(count), "--seconds", str(int(seconds)), *more)


def planted() -> list[Watched]:
    """What each tool must count."""
    faults = (("memcheck", "out-of-bounds"), ("racecheck", "race"))
    return [
        Watched(f"planted {fault}", tool, (fault,), "moeprof_gpu_planted_faults", True)
        for tool, fault in faults
    ]


def kernels(seconds: float) -> list[Watched]:
    """Every kernel under both tools; racecheck is slower, so it gets fewer and smaller rounds."""
    gemm, exchange = "moeprof_gpu_grouped_gemm_stress", "moeprof_gpu_exchange_stress"
    small = ("--most-bytes", "300000")
    plans = (
        ("grouped products", gemm, "memcheck", rounds(60, seconds, "--longest", "300")),
        ("grouped products", gemm, "racecheck", rounds(25, seconds, "--longest", "200")),
        ("exchange of 2 ranks", exchange, "memcheck", rounds(10, seconds, "--ranks", "2", *small)),
        ("exchange of 2 ranks", exchange, "racecheck", rounds(5, seconds, "--ranks", "2", *small)),
        ("exchange of 8 ranks", exchange, "memcheck", rounds(5, seconds, "--ranks", "8", *small)),
        ("exchange of 8 ranks", exchange, "racecheck", rounds(3, seconds, "--ranks", "8", *small)),
    )
    return [Watched(name, tool, arguments, program) for name, program, tool, arguments in plans]


def read_summary(text: str) -> int | None:
    """Errors or hazards that the last summary of a log counts; None where there is none."""
    found = _SUMMARY.findall(text)
    return int(found[-1][0] or found[-1][1]) if found else None


def rounds_done(text: str) -> int | None:
    """How many rounds the program says it did; it stops before its limit."""
    found = _ROUNDS.search(text)
    return int(found[1]) if found else None


def command_of(watched: Watched, build: Path) -> list[str]:
    """The sanitizer's command line.

    Calls of the runtime that fail are the program's own to check; with padding between allocations
    a byte past the end of one is not a byte of the next.
    """
    options = ["--error-exitcode", str(COUNTED), "--print-limit", "20"]
    if watched.tool == "memcheck":
        options += ["--report-api-errors", "no", "--padding", "256"]
    program = str(build / watched.program)
    return ["compute-sanitizer", "--tool", watched.tool, *options, program, *watched.arguments]


def missing(runs: Sequence[Watched], build: Path) -> str:
    """ "" where the sanitizer and every program are there, else the first that is not."""
    if shutil.which("compute-sanitizer") is None:
        return "compute-sanitizer: expected it on the path, found none; CUDA's toolkit has it"
    for program in (build / run.program for run in runs):
        if not program.exists():
            return f"{program}: expected a program, found none; native/gpu/build.sh builds it"
    return ""


def verdict(watched: Watched, found: int | None, status: int | None, text: str) -> str:
    """ "" where the run is as it should be, else what was expected and found."""
    if watched.is_planted:
        seen = status == COUNTED and found is not None and found > 0
        return "" if seen else f"expected the planted fault to be counted, found {found}"
    if status is None:
        return "expected it to end within its limit"
    if found is None:
        return f"expected a summary of the sanitizer, found none, status {status}"
    if found or status == COUNTED:
        return f"expected nothing to be counted, found {found}"
    if status or not any(line.startswith("ok") for line in text.splitlines()):
        return f'expected the program to end with "ok", found status {status}'
    return ""


def watch(watched: Watched, build: Path, log: Path, limit_s: float) -> dict[str, Any]:
    """Run it into ``log``: what was counted, the exit status (None past the limit), the verdict."""
    began = time.monotonic()
    status: int | None = None
    with log.open("w") as file:
        try:
            process = subprocess.Popen(
                command_of(watched, build),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            file.write(f"{error}\n")
        else:
            status = end_of(process, limit_s)
    text = log.read_text(errors="replace")
    found = read_summary(text)
    wrong = verdict(watched, found, status, text)
    return {
        "program": watched.name,
        "tool": watched.tool,
        "arguments": list(watched.arguments),
        "rounds": rounds_done(text),
        "found": found,
        "status": status,
        "is_clean": not wrong and not watched.is_planted,
        "is_planted": watched.is_planted,
        "wrong": wrong,
        "seconds": round(time.monotonic() - began, 1),
    }


def end_of(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Its status; None where it did not end in time and was killed with its children."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None


def watch_all(
    runs: Sequence[Watched], build: Path, folder: Path, limit_s: float
) -> list[dict[str, Any]]:
    """All at the same time, as each keeps one core and little of the GPU busy."""
    with ThreadPoolExecutor(max(1, len(runs))) as pool:
        return list(
            pool.map(lambda run: watch(run, build, folder / f"{run.label}.log", limit_s), runs)
        )


def unless_blind(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row, not clean where its tool did not count the fault planted for it."""
    blind = {other["tool"] for other in rows if other["is_planted"] and other["wrong"]}
    if row["wrong"] or row["tool"] not in blind:
        return row
    return {**row, "is_clean": False, "wrong": "its tool did not count the planted fault"}


def report(row: dict[str, Any], log: Path) -> None:
    """A line, and the beginning of the log where something is wrong."""
    good = "counted, as planted" if row["is_planted"] else "clean"
    line = f"{row['program']:<24}{row['tool']:<11}{row['seconds']:6.1f} s  {row['wrong'] or good}"
    print(line, flush=True)
    if row["wrong"]:
        print(f"  {log}:")
        for text in log.read_text(errors="replace").splitlines()[:60]:
            print(f"  | {text[:200]}")


def main() -> None:
    """Run all, print a line each, write JSON; the number of wrong runs is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-s", type=float, default=120, help="per tool and program")
    parser.add_argument("--build", type=Path, default=BUILD, help="folder with the programs")
    parser.add_argument("--only", default="", help="runs whose tool or program holds this text")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_sanitize.json")
    options = parser.parse_args()
    wanted = [run for run in kernels(0.75 * options.limit_s) if options.only in run.label]
    if not wanted:
        sys.exit(f"--only: expected part of a tool's or program's name, found {options.only!r}")
    begin(parser.prog, 1, options.out)
    absent = missing([*planted(), *wanted], options.build)
    if absent:
        sys.exit(absent)
    folder = options.out.parent / "sanitize"
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for runs in (planted(), wanted):
        rows += watch_all(runs, options.build, folder, options.limit_s)
        rows = [unless_blind(row, rows) for row in rows]
        write_result(options.out, {"machine": gpu_machine(), "runs": rows})
    for run, row in zip([*planted(), *wanted], rows, strict=True):
        report(row, folder / f"{run.label}.log")
    sys.exit(sum(1 for row in rows if row["wrong"]))


if __name__ == "__main__":
    main()
