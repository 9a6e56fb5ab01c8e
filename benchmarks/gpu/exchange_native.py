"""Question: how fast are the exchange kernels between two GPUs, without a framework?

    python benchmarks/gpu/exchange_native.py [--build FOLDER] [--out FILE.json]

Runs `moeprof_gpu_exchange_stress --bench` (native/stress/gpu_exchange_bench.cu), which prints a
line of JSON per operation, tokens and number of blocks; writes them with the machine they are of.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result
from gpu.machine import gpu_machine

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PROGRAM = "moeprof_gpu_exchange_stress"


def rows_of(text: str) -> list[dict[str, Any]]:
    """The lines of JSON among the others."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    if "tokens" not in row:
        return f"{row['operation']:<30} {row['mean_us']:9.1f} us"
    blocks = row["blocks"] or "-"
    return (
        f"T {row['tokens']:>5}  {row['operation']:<16} {blocks:>4} blocks"
        f" {row['median_us']:9.1f} us {row['GB_s']:8.1f} GB/s"
    )


def main() -> None:
    """Run, print a table, write JSON; the program's status is this one's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_exchange_native.json")
    options = parser.parse_args()
    begin(parser.prog, 2, options.out)
    program = options.build / PROGRAM
    if not program.exists():
        sys.exit(
            f"{program}: expected the program there, found none; native/gpu/build.sh builds it"
        )
    done = subprocess.run([str(program), "--bench"], stdout=subprocess.PIPE, text=True)
    rows = rows_of(done.stdout)
    for row in rows:
        print(line(row), flush=True)
    if done.returncode or not any("tokens" in row for row in rows):
        print(done.stdout[-2000:], file=sys.stderr)
        sys.exit(done.returncode or f"{program} --bench: expected lines of JSON, found none")
    document = {"machine": gpu_machine(), "rows": rows}
    write_result(options.out, document)


if __name__ == "__main__":
    main()
