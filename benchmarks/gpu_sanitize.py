"""Question: does compute-sanitizer find a bad access or a race in the GPU kernels?

    python benchmarks/gpu_sanitize.py [--out FILE.json]

memcheck and racecheck of the small grouped products under JAX (our kernels alone are watched), and
of the exchange's own program (`gpu_exchange.sh`). Each is clean where its summary says so and the
program it watches ended well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_machine import gpu_machine

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TOOLS = ("memcheck", "racecheck")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def read_summary(text: str) -> int | None:
    """Errors or hazards that the last summary of a log counts; None where there is none."""
    found = _SUMMARY.findall(text)
    return int(found[-1][0] or found[-1][1]) if found else None


def grouped_products(tool: str, log: Path, limit_s: float) -> dict[str, Any]:
    """One tool over the small grouped products."""
    command = ["compute-sanitizer", "--tool", tool, "--kernel-name", "kns=moeprof"]
    command += [sys.executable, str(HERE / "gpu_small_products.py")]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}
    return {
        "program": "grouped products",
        "tool": tool,
        **watch(command, environment, log, limit_s),
    }


def watch(
    command: list[str], environment: dict[str, str], log: Path, limit_s: float
) -> dict[str, Any]:
    """Run it into ``log``; what the summary says, and the exit status."""
    try:
        with log.open("w") as file:
            done = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, timeout=limit_s
            )
        status: int | None = done.returncode
    except subprocess.TimeoutExpired:
        status = None
    except FileNotFoundError as error:
        return {"found": None, "status": None, "is_clean": False, "failed": str(error)}
    found = read_summary(log.read_text(errors="replace"))
    return {"found": found, "status": status, "is_clean": found == 0 and status == 0}


def exchange(folder: Path, limit_s: float) -> list[dict[str, Any]]:
    """Both tools over the exchange's program, which runs them itself."""
    command = [str(HERE / "gpu_exchange.sh"), str(folder), "sanitize"]
    whole = watch(command, dict(os.environ), folder / "sanitize.log", limit_s)
    rows = []
    for tool in TOOLS:
        log = folder / f"{tool}.log"
        found = read_summary(log.read_text(errors="replace")) if log.exists() else None
        clean = found == 0 and whole["status"] == 0
        row = {"program": "exchange", "tool": tool, "found": found, "is_clean": clean}
        rows.append({**row, "status": whole["status"]})
    return rows


def main() -> None:
    """Run all, print a line each, write JSON; 1 where one is not clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-s", type=float, default=100, help="per tool and program")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_sanitize.json")
    options = parser.parse_args()
    folder = options.out.parent / "sanitize"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        grouped_products(tool, folder / f"grouped_products_{tool}.log", options.limit_s)
        for tool in TOOLS
    ]
    rows += exchange(folder, 2 * options.limit_s)
    for row in rows:
        verdict = "clean" if row["is_clean"] else f"NOT CLEAN: {row}"
        print(f"{row['program']:<18}{row['tool']:<12}{verdict}", flush=True)
    options.out.write_text(json.dumps({"machine": gpu_machine(), "runs": rows}, indent=1) + "\n")
    sys.exit(0 if all(row["is_clean"] for row in rows) else 1)


if __name__ == "__main__":
    main()
