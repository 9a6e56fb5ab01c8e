"""Question: does a whole training command take on GPUs what `moeprof memory` says that it will?

    python benchmarks/gpu/whole_runs.py [--case nnx] [--devices 2] [--out FILE.json]

Each case is a command line as a user types it: planned by `moeprof memory` for as many devices as
there are here (or `--devices`), then run under `moeprof capture`, from which come the program's own
arguments and arena and the peak of the allocator of the fullest device. The peak is that of the
whole process: drawing weights, tuning kernels and the steps, as a user's run has it. Plans are made
first and at the same time, on the processor. MaxText's cases need it installed; one that cannot be
made here is named with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, count_gpus, write_result
from gpu.machine import gpu_machine

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results"
HARDWARE = "h200_sxm"
PLAN_LIMIT_S, RUN_LIMIT_S = 300, 150
_SCRIPTS = {
    "plain": ("examples/third_party_moe.py", ()),
    "nnx": ("tests/clients/nnx_moe.py", ("--vocabulary", "32000")),
}
_MODEL = ("--width", "2048", "--layers", "4", "--experts", "16", "--heads", "16")
_MODEL += ("--length", "2048", "--steps", "12")
TRAIN = ("-m", "maxtext.trainers.pre_train.train")
# The model of two traces that others have of two H100; their step had 2,009,196,532 B of arguments
# and 3,898,152,944 B of arena.
MAXTEXT_MODEL: dict[str, Any] = {
    "model_name": "deepseek3-tiny",
    "override_model_config": "true",
    "base_emb_dim": 2048,
    "base_num_query_heads": 16,
    "base_num_kv_heads": 16,
    "base_mlp_dim": 8192,
    "base_moe_mlp_dim": 1024,
    "base_num_decoder_layers": 5,
    "first_num_dense_layers": 1,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "vocab_size": 32768,
    "max_target_length": 2048,
    "per_device_batch_size": 2,
    "scan_layers": "true",
    "remat_policy": "full",
    "weight_dtype": "bfloat16",
    "dtype": "bfloat16",
    "ici_fsdp_parallelism": 1,
    "run_name": "a",
    "base_output_directory": "out",
    "hardware": "gpu",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "attention": "dot_product",
    "steps": 16,
    "enable_goodput_recording": "false",
    "log_config": "false",
    "megablox": "False",
}
_EXCHANGES = {
    "maxtext-capacity": {"sparse_matmul": "False", "capacity_factor": 1.25},
    "maxtext-ragged": {"sparse_matmul": "True"},
}
CASES = (*_SCRIPTS, *_EXCHANGES)


@dataclass(frozen=True)
class Case:
    """A command line: options of `moeprof memory` before the run's own, and what capture runs."""

    planning: tuple[str, ...]
    running: tuple[str, ...]


def made(name: str, devices: int) -> Case:
    """The case of a name, its experts over all devices."""
    if name in _SCRIPTS:
        script, own = _SCRIPTS[name]
        mesh = ("--data", "1", "--expert", str(devices), "--batch", str(4 * devices))
        words = (*mesh, *_MODEL, *own)
        return Case(("--script", script, "--", *words), (script, *words))
    options = {**MAXTEXT_MODEL, **_EXCHANGES[name], "ici_expert_parallelism": devices}
    words = (maxtext_base(), *(f"{key}={value}" for key, value in options.items()))
    return Case(("--compile", "--maxtext", *words), (*TRAIN, *words))


def maxtext_base() -> str:
    """The configuration that MaxText's own commands begin with."""
    spec = importlib.util.find_spec("maxtext")
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / "configs" / "base.yml")


def why_absent(name: str) -> str:
    """ "" where a case can be made here."""
    needed = {"plain": ("optax",), "nnx": ("flax", "optax")}.get(name, ("maxtext",))
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def environment() -> dict[str, str]:
    """What commands are started in: MaxText without its cloud, one process."""
    own = {"DECOUPLE_GCLOUD": "TRUE", "TF_CPP_MIN_LOG_LEVEL": "2"}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, **own, "PYTHONPATH": path}


def ended(words: list[str], limit_s: float, folder: Path) -> tuple[str, str]:
    """What a command prints, and why there is nothing where it fails."""
    if limit_s <= 0:
        return "", "not started, the time of all cases is over"
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=limit_s, env=environment(), cwd=folder
        )
    except subprocess.TimeoutExpired:
        return "", f"no result within {limit_s:.0f} s"
    if done.returncode == 0:
        return done.stdout, ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or line.startswith("moeprof:")]
    return "", (telling or lines or ["no output"])[-1][:500]


def planned(case: Case, devices: int, limit_s: float) -> dict[str, Any]:
    """What `moeprof memory` says of a command: of the program that takes most."""
    words = [sys.executable, "-m", "moeprof", "memory", "--json", "--hardware", HARDWARE]
    began = time.perf_counter()
    text, failed = ended([*words, "--devices", str(devices), *case.planning], limit_s, ROOT)
    if failed:
        return {"failed": failed}
    document = json.loads(text)
    program = document["programs"][document["largest"]]
    plan = program["plan"]
    return {
        "took_s": round(time.perf_counter() - began, 2),
        "verdict": document["verdict"],
        "program": program["name"],
        "compiler": plan["compiler"],
        "argument_bytes": plan["arguments_bytes"],
        "temp_bytes": plan["temporaries_bytes"],
        "library_temp_bytes": plan["library_temporaries_bytes"],
        "others_bytes": program["others_bytes"],
        "range_bytes": program["range_bytes"],
        "notes": document["notes"],
    }


def run_here(case: Case, limit_s: float) -> dict[str, Any]:
    """What the command takes on the GPUs, by what capture records."""
    from moeprof.projector.calibrate import measured

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        running = [str(ROOT / word) if (ROOT / word).is_file() else word for word in case.running]
        words = [sys.executable, "-m", "moeprof", "capture", "--no-report", "--out", "run"]
        _, failed = ended([*words, *running], limit_s, folder)
        if failed:
            return {"failed": failed}
        found = measured(folder / "run")
    return {
        "program": found.program,
        "argument_bytes": found.args_bytes,
        "temp_bytes": found.temp_bytes,
        "peak_bytes": found.allocator_peak_bytes,
        "jax": found.jax_version,
        "device": found.device_model,
    }


def compared(plan: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """How far the plan is from the run, as shares of the measured figures."""
    least, most = plan["range_bytes"]
    peak = run["peak_bytes"]
    beyond = None if not peak else round(max(least - peak, peak - most, 0) / peak, 4)
    return {
        "is_same_program": run["program"].removeprefix("jit_").startswith(plan["program"]),
        "arguments_are_equal": plan["argument_bytes"] == run["argument_bytes"],
        "temp_error": round(plan["temp_bytes"] / run["temp_bytes"] - 1, 4),
        "beyond_range": beyond,
        "most_error": None if not peak else round(most / peak - 1, 4),
    }


HEAD = f"{'':<18} {'args':>9} {'peak ≥':>9} {'peak ≤':>9} {'real':>9} {'beyond':>8}"


def line_of(name: str, row: dict[str, Any]) -> str:
    """A row of the table that is printed."""
    for what in ("skipped", "failed"):
        if what in row:
            return f"{name:<18} {what}: {row[what][:100]}"
    plan, run, found = row["plan"], row["run"], row["compared"]
    sizes = (plan["argument_bytes"], *plan["range_bytes"], run["peak_bytes"] or 0)
    shown = " ".join(f"{size / 2**30:9.3f}" for size in sizes)
    equal = "=" if found["arguments_are_equal"] else "!"
    beyond = "–" if found["beyond_range"] is None else f"{100 * found['beyond_range']:+.2f}%"
    return f"{name:<18} {shown} {equal} {beyond:>7}"


def main() -> int:
    """Plan all, run all, print and write; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--devices", type=int, help="default: all that are here")
    parser.add_argument("--limit-s", type=float, default=570, help="no case goes on after this")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_whole_runs.json")
    asked = parser.parse_args()
    devices = asked.devices or max(count_gpus(), 1)
    begin(parser.prog, devices, asked.out)
    ends = time.monotonic() + asked.limit_s
    cases: dict[str, Any] = {}
    for name in asked.case or CASES:
        reason = why_absent(name)
        cases[name] = {"skipped": reason} if reason else {}
    wanted = {name: made(name, devices) for name, row in cases.items() if not row}
    with ThreadPoolExecutor(4) as pool:
        limit_s = min(PLAN_LIMIT_S, asked.limit_s)
        plans = dict(
            zip(
                wanted,
                pool.map(lambda case: planned(case, devices, limit_s), wanted.values()),
                strict=True,
            )
        )
    head = {"machine": gpu_machine(), "hardware": HARDWARE, "devices": devices}
    print(HEAD)
    for name, row in cases.items():
        if name in wanted:
            plan = plans[name]
            row |= {"failed": f"plan: {plan['failed']}"} if "failed" in plan else {"plan": plan}
        if "plan" in row:
            run = run_here(wanted[name], min(RUN_LIMIT_S, ends - time.monotonic()))
            row |= {"failed": f"run: {run['failed']}"} if "failed" in run else {"run": run}
        if "run" in row:
            row["compared"] = compared(row["plan"], row["run"])
        print(line_of(name, row), flush=True)
        write_result(asked.out, {**head, "cases": cases})
    return sum("failed" in row for row in cases.values())


if __name__ == "__main__":
    sys.exit(main())
