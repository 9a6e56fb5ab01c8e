"""Question: what does it cost to plan a whole training command for devices that are not there?

    PYTHONPATH=PLUGIN python benchmarks/plan_scripts.py [--case nnx] [--devices 64] [--rounds 3]

Each case is `moeprof memory` as a process of its own, on a machine without a GPU: a script of plain
JAX, one of Flax NNX, and MaxText with its own command line. Compared are the seconds of the whole
command and those in which XLA's compiler worked, which no planner saves; the difference is what
planning adds. Cases need Python 3.12 with Flax and MaxText (`make .venv-maxtext/.installed`), and
PLUGIN, a folder with JAX's CUDA plugin; what is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu.whole_runs import maxtext_base
from machine import machine

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "plan_scripts.json"
HARDWARE = "h100_sxm"
DEVICES = (8, 64)
NEEDS = {"plain": ("optax",), "nnx": ("flax", "optax"), "maxtext": ("maxtext",)}
_SIZES = ["--width", "2048", "--layers", "4", "--experts", "64", "--heads", "16"]
_SIZES += ["--length", "2048"]
MOST_BESIDE_S = 60.0


def words_of(case: str, devices: int) -> list[str]:
    """The options and arguments of `moeprof memory` for a case."""
    head = ["--devices", str(devices), "--hardware", HARDWARE, "--json"]
    mesh = ["--data", str(devices // 8), "--expert", "8", "--batch", str(2 * devices)]
    if case == "plain":
        return ["--script", "examples/third_party_moe.py", *head, "--", *mesh, *_SIZES]
    if case == "nnx":
        vocabulary = ["--vocabulary", "32000"]
        return ["--script", "tests/clients/nnx_moe.py", *head, "--", *mesh, *_SIZES, *vocabulary]
    return [*head, "--compile", "--maxtext", maxtext_base(), *maxtext_options(devices)]


def maxtext_options(devices: int) -> list[str]:
    """DeepSeek-V2-Lite as MaxText has it, experts over 8 devices."""
    return [
        "model_name=deepseek2-16b",
        "per_device_batch_size=2",
        "max_target_length=2048",
        "sparse_matmul=False",
        "megablox=False",
        "capacity_factor=1.25",
        "ici_expert_parallelism=8",
        "ici_fsdp_parallelism=1",
        f"dcn_fsdp_parallelism={devices // 8}",
        "weight_dtype=bfloat16",
        "dataset_type=synthetic",
        "enable_checkpointing=false",
    ]


def planned(case: str, devices: int) -> dict[str, Any]:
    """One run of a case: seconds, and what was answered."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "moeprof", "memory", *words_of(case, devices)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    took_s = time.perf_counter() - began
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][-500:]}
    return {"took_s": round(took_s, 2), **answered(json.loads(done.stdout))}


def answered(document: dict[str, Any]) -> dict[str, Any]:
    """Verdict, peak of the largest program and the compiler's seconds, of a script's document."""
    programs = document["programs"]
    plans = [program["plan"] for program in programs if program["plan"]]
    largest = programs[document["largest"]]
    return {
        "compile_s": round(sum(plan["compile_s"] for plan in plans), 2),
        "ran_s": round(document["ran_s"], 2),
        "verdict": document["verdict"],
        "is_sure": document["is_sure"],
        "programs": [program["name"] for program in programs],
        "decides": largest["name"],
        "range_bytes": largest["range_bytes"],
        "compiler": plans[0]["compiler"],
    }


def main() -> None:
    """Plan every case, print a line each and write the file of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=tuple(NEEDS))
    parser.add_argument("--devices", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    head = machine("jax", "jaxlib", "jax-cuda13-plugin", "flax", "optax", "maxtext")
    rows = []
    for case in asked.case or NEEDS:
        missing = [name for name in NEEDS[case] if importlib.util.find_spec(name) is None]
        for devices in asked.devices or DEVICES:
            row: dict[str, Any] = {"case": case, "devices": devices}
            if missing:
                row["left_out"] = f"{', '.join(missing)} is not installed"
            else:
                row |= measured(case, devices, asked.rounds)
            rows.append(row)
            print(json.dumps(row), flush=True)
    document = {"schema": "moeprof.bench/1", "machine": head, "hardware": HARDWARE, "cases": rows}
    asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measured(case: str, devices: int, rounds: int) -> dict[str, Any]:
    """Medians of some runs of a case, of which the answers must agree."""
    runs = [planned(case, devices) for _ in range(rounds)]
    failed = next((run for run in runs if "failed" in run), None)
    if failed is not None:
        return failed
    beside = [round(run["took_s"] - run["compile_s"], 2) for run in runs]
    timed = ("took_s", "compile_s", "ran_s")
    answers = [{k: v for k, v in run.items() if k not in timed} for run in runs]
    assert all(one == answers[0] for one in answers), answers
    return {
        **answers[0],
        **{name: statistics.median(run[name] for run in runs) for name in timed},
        "beside_compiler_s": statistics.median(beside),
        "is_within_limit": statistics.median(beside) <= MOST_BESIDE_S,
        "runs": [[run["took_s"], run["compile_s"]] for run in runs],
    }


if __name__ == "__main__":
    main()
