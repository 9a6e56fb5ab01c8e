"""Question: what does the compiler plan, without a GPU, for the steps that `memory.py` ran?

    python benchmarks/gpu/memory_plan.py [--file results/gpu_memory.json]

Adds to each case of the file the totals of `moeprof memory --compile`, and how far they are from
what the same step's `memory_analysis` said on the GPUs. With the same jax as there, what differs is
what the GPU adds: kernels that are tuned by running them, and their workspaces.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moeprof.projector.compiled.bundled import compile_bundled
from moeprof.projector.setting import Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

FILE = Path(__file__).parents[1] / "results" / "gpu_memory.json"
HARDWARE = {"H100": "h100_sxm", "H200": "h200_sxm"}


def setting_of(head: dict[str, Any], case: dict[str, Any]) -> Setting:
    """A measured case as the projector takes it."""
    values = dict(head["model"])
    model = ModelSpec(attention=MlaSpec(**values.pop("attention")["mla"]), **values)
    card = next(key for name, key in HARDWARE.items() if name in head["machine"]["cards"][0])
    devices, expert = len(head["machine"]["cards"]), head["expert"]
    return Setting(
        model,
        ParallelPlan(fsdp=devices // expert, expert=expert, remat=Remat(case["remat"])),
        parse_strategy(case["strategy"]),
        load_hardware(card),
        head["sequence"],
        case["pdbs"],
        framework="bundled",
        precision=Precision(),
    )


def main() -> None:
    """Compile what the file does not have yet, and write it again after each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=FILE)
    file = parser.parse_args().file
    whole = json.loads(file.read_text())
    for case in whole["cases"]:
        if "failed" in case or "compiled" in case:
            continue
        memory = compile_bundled(setting_of(whole, case)).memory
        case["compiled"] = {
            "argument_bytes": memory.argument_bytes,
            "temp_bytes": memory.temp_bytes,
            "jax": version("jax"),
            "arguments_are_equal": memory.argument_bytes == case["argument_bytes"],
            "temp_error": round((memory.temp_bytes or 0) / case["temp_bytes"] - 1, 4),
        }
        file.write_text(json.dumps(whole, indent=1) + "\n")
        print(f"{case['strategy']:<18} pdbs {case['pdbs']:<2} {case['compiled']}", flush=True)


if __name__ == "__main__":
    main()
