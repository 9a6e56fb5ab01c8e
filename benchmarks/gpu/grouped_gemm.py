"""Question: how fast is our grouped GEMM on a GPU beside its peers and beside one dense product?

    python benchmarks/gpu/grouped_gemm.py [--case NAME] [--out FILE.json] [--smoke]

Contestants of each pass (gemm_shapes.py): `moeprof.kernels.grouped_gemm` under jit,
`jax.lax.ragged_dot`, Pallas' ragged_dot and transposed_ragged_dot for Hopper (the best of a few
tile sizes), `torch._grouped_mm`, and a dense product [M, k] [k, n] of the same flops by JAX and by
torch. They take turns, in processes of their own; one that fails, or is not ready within
--prepare-s, is named with the reason. All are timed alike, by the host's clock over many calls that
are sent off together, so that sending one off and the wait at the end weigh little. What ours
computes is compared with the host's products before it is timed. The result file is written after
every pass; the exit status is the number of passes that were not started, or in which ours failed
or was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result
from gpu.gemm_contestants import KINDS
from gpu.gemm_process import ContestantProcess, prepare_all
from gpu.gemm_shapes import PASSES, SHAPES, SMOKE_SHAPES, Shape
from gpu.machine import gpu_machine
from gpu.timing import Contestant, Timing, take_turns
from moeprof.kernels.provider import describe

RESULTS = Path(__file__).parents[1] / "results"
LEAST_CALLS = 8  # of a sample
# ‖ours − float32‖ / ‖float32‖ of bfloat16 results: 2^-9 per element at most, less on average.
LARGEST_ERROR = 2**-8


def measure(
    name: str,
    shape: Shape,
    which: str,
    processes: list[ContestantProcess],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The row of one pass."""
    prepared = prepare_all(processes, which, options.prepare_s)
    contestants = [Contestant(name, sample) for name, sample in prepared.samples.items()]
    timings, failed = take_turns(
        contestants, options.samples, options.sample_s, options.limit_s, LEAST_CALLS
    )
    return {
        "case": name,
        "pass": which,
        **asdict(shape),
        "flops": shape.flops,
        "relative_error": prepared.notes.get("relative_error"),
        "pallas_tile": prepared.notes.get("pallas_tile", ""),
        "timings": {key: timing.as_json() for key, timing in timings.items()},
        "tflops": {key: round(rate(shape, timing), 2) for key, timing in timings.items()},
        "failed": {**prepared.failed, **failed},
    }


def is_right(row: dict[str, Any]) -> bool:
    """Whether ours was timed and computes what it should; NaN is not."""
    error = row["relative_error"]
    return "moeprof" in row["timings"] and error is not None and error <= LARGEST_ERROR


def rate(shape: Shape, timing: Timing) -> float:
    """TFLOP/s: 10^12 flops of used rows per second."""
    return shape.flops / timing.median_s / 1e12


CONTESTANTS = ("moeprof", "torch_grouped_mm", "pallas", "ragged_dot", "dense_jax", "dense_torch")
HEADER = f"{'TFLOP/s':<24}{'pass':<9}" + "".join(f"{name:>17}" for name in CONTESTANTS) + "   error"


def line(row: dict[str, Any]) -> str:
    """One row of the table: TFLOP/s, a dash where a contestant failed."""
    rates = row["tflops"]
    texts = (f"{rates[name]:.2f}" if name in rates else "-" for name in CONTESTANTS)
    return (
        f"{row['case']:<24}{row['pass']:<9}"
        + "".join(f"{text:>17}" for text in texts)
        + ("   -" if row["relative_error"] is None else f"   {row['relative_error']:.1e}")
    )


def main() -> None:
    """Measure every pass of every case, print a table, write JSON after each pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--sample-s", type=float, default=0.1, help="seconds per sample")
    parser.add_argument("--limit-s", type=float, default=2.0, help="of samples per contestant")
    parser.add_argument("--prepare-s", type=float, default=120, help="to compile one pass")
    parser.add_argument("--without", action="append", default=[], choices=list(KINDS))
    parser.add_argument("--until-s", type=float, default=86400, help="start no pass after this")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_grouped_gemm.json")
    options = parser.parse_args()
    shapes = SMOKE_SHAPES if options.smoke else SHAPES
    for name in options.case or ():
        if name not in shapes:
            parser.error(f"--case: expected one of {', '.join(shapes)}, found {name}")
    begin(parser.prog, 1, options.out, smoke=options.smoke)
    kinds = [kind for kind in KINDS if kind not in options.without]
    if options.smoke:  # what a CPU has
        kinds = [kind for kind in kinds if kind not in ("pallas", "torch")]
    began = time.monotonic()
    document: dict[str, Any] = {
        "machine": gpu_machine(),
        "kernels": asdict(describe())["reason"],
        "timing": {
            "clock": "host",
            "samples": options.samples,
            "sample_s": options.sample_s,
            "least_calls": LEAST_CALLS,
        },
        "rows": [],
    }
    wrong = 0
    print(HEADER)
    for name in options.case or shapes:
        processes = [ContestantProcess(kind, shapes[name]) for kind in kinds]
        try:
            for which in PASSES:
                if time.monotonic() - began > options.until_s:
                    print(f"{name} {which}: not started, {options.until_s:.0f} s are over")
                    wrong += 1
                    continue
                row = measure(name, shapes[name], which, processes, options)
                document["rows"].append(row)
                document["seconds"] = round(time.monotonic() - began, 1)
                if any(found["timings"] for found in document["rows"]):
                    write_result(options.out, document)
                print(line(row), flush=True)
                wrong += not is_right(row)
                for contestant, reason in row["failed"].items():
                    print(f"  {contestant}: {reason}", flush=True)
        finally:
            for process in processes:
                process.close()
    sys.exit(wrong)


if __name__ == "__main__":
    # The GPU's memory is the contestants': neither this process nor one of them takes all of it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
