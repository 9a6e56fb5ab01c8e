"""Question: what do the kernels and strategies reach on GPUs, by the committed measurements?

Prints docs/gpu.md from the result files of benchmarks/gpu.sh that are there:

    python docs/write_gpu.py > docs/gpu.md
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from gpu_page.kernels import (
    exchange,
    exchange_native,
    exchange_processes,
    grouped_gemm,
    grouped_gemm_check,
    sanitizers,
)
from gpu_page.training import (
    captured_steps,
    convergence,
    imbalance,
    maxtext_paths,
    plans,
    strategies,
    whole_runs,
)

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
INTRODUCTION = """\
# On GPUs: what was measured

Written by `python docs/write_gpu.py > docs/gpu.md` from the files in `benchmarks/results/`,
measured on the NVIDIA GPUs that each table names; a test compares the two. `benchmarks/gpu.sh`
makes such files; where one was read off what a program printed, that is said there. Figures are
medians; peers take turns sample by sample within one run. TFLOP/s are 10^12 flops of used rows per
second, GB are 10^9 bytes, GiB 2^30. A dash: that contestant failed, as said below its table."""
SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "gpu_grouped_gemm_check.json": grouped_gemm_check,
    "gpu_grouped_gemm.json": grouped_gemm,
    "gpu_exchange.json": exchange,
    "gpu_exchange_processes.json": exchange_processes,
    "gpu_exchange_native.json": exchange_native,
    "gpu_ab.json": strategies,
    "gpu_ab_one_gpu.json": strategies,
    "gpu_imbalance.json": imbalance,
    "gpu_steps.json": captured_steps,
    "gpu_steps_two.json": captured_steps,
    "gpu_plans.json": plans,
    "gpu_whole_runs.json": whole_runs,
    "gpu_whole_runs_two.json": whole_runs,
    "gpu_maxtext_paths.json": maxtext_paths,
    "gpu_convergence.json": convergence,
    "gpu_sanitize.json": sanitizers,
}


def wrapped(part: str) -> str:
    """A paragraph in lines of at most 100 characters; headings, tables and lists as they are."""
    return (
        part
        if part.startswith(("#", "|", "-"))
        else textwrap.fill(part, 100, break_on_hyphens=False)
    )


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    parts = []
    for name, section in SECTIONS.items():
        file = results / name
        if file.is_file():
            found = section(json.loads(file.read_text(encoding="utf-8")))
            parts += [wrapped(part) for part in found.split("\n\n")]
    return "\n\n".join([INTRODUCTION, *parts])


if __name__ == "__main__":
    print(page())
