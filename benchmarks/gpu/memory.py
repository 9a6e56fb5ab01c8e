"""Question: how much memory does the bundled model really take on GPUs, by strategy and pdbs?

    python benchmarks/gpu/memory.py [--expert 2] [--out FILE.json]

Each configuration is a process of its own, since an allocator's peak is that of its process. It
compiles the training step, runs it twice and states two figures per device: XLA's plan of
the program (`memory_analysis`) and the allocator's peak. Strategies that have no kernel on this
GPU are named with the reason. A configuration that runs out of memory states the message.
`benchmarks/memory_closed_form.py` sets the figures beside the projections.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result

RESULTS = Path(__file__).parents[1] / "results"
MODEL = {
    "layers": 4,
    "dense_layers": 1,
    "hidden": 2048,
    "heads": 16,
    "experts": 64,
    "top_k": 8,
    "moe_ffn": 1024,
    "dense_ffn": 8192,
    "vocab": 32768,
    "compute_dtype": "bfloat16",
    "weight_dtype": "bfloat16",
}
MLA = {"q_lora_rank": 768, "kv_lora_rank": 256, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
SEQUENCE = 4096
CASES = (
    *((f"dense-cf{factor}", pdbs) for factor in (1.25, 2, 4) for pdbs in (1, 2, 4, 8)),
    *(("sparse-ragged-dot", pdbs) for pdbs in (1, 2)),
    *(("sparse-gmm", pdbs) for pdbs in (1, 2)),
    ("sparse-gmm-deepep", 1),
)
STEPS = 2


def measure_here(strategy_name: str, pdbs: int, expert: int, remat: str) -> dict[str, Any]:
    """Run one configuration in this process, on the GPUs that JAX sees."""
    import jax
    import numpy as np

    from moeprof.model.layout import build_mesh, put_batch
    from moeprof.model.train import init_state, make_job, make_step
    from moeprof.specs.model import MlaSpec, ModelSpec
    from moeprof.specs.plan import fill_plan
    from moeprof.specs.remat import Remat
    from moeprof.specs.strategy import parse_strategy

    model = ModelSpec(attention=MlaSpec(**MLA), **MODEL)
    plan = fill_plan(jax.device_count(), fsdp=-1, expert=expert, remat=Remat(remat))
    mesh = build_mesh(plan, model)
    job = make_job(model, plan, parse_strategy(strategy_name), mesh)
    state = init_state(job, mesh)
    before = [_stats(d)["peak_bytes_in_use"] for d in jax.local_devices()]
    random = np.random.default_rng(0)
    sequences = pdbs * plan.devices
    batch = put_batch(
        random.integers(0, model.vocab, (sequences, SEQUENCE + 1), dtype=np.int32), mesh
    )
    began = time.perf_counter()
    compiled = make_step(job, mesh).lower(state, batch).compile()
    compile_s = time.perf_counter() - began
    plan_bytes = compiled.memory_analysis()
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        state, report = compiled(state, batch)
        loss = float(report.loss)
        times.append(time.perf_counter() - began)
    stats = [_stats(d) for d in jax.local_devices()]
    return {
        "loss": loss,
        "step_s": times,
        "compile_s": compile_s,
        "argument_bytes": plan_bytes.argument_size_in_bytes,
        "output_bytes": plan_bytes.output_size_in_bytes,
        "alias_bytes": plan_bytes.alias_size_in_bytes,
        "temp_bytes": plan_bytes.temp_size_in_bytes,
        "generated_code_bytes": plan_bytes.generated_code_size_in_bytes,
        "peak_before_step_bytes": before,
        "allocator_peak_bytes": [s["peak_bytes_in_use"] for s in stats],
        "pool_bytes": [s["bytes_limit"] for s in stats],
    }


def _stats(device: Any) -> dict[str, int]:
    stats = device.memory_stats()
    if not stats:
        raise SystemExit("this backend reports no memory statistics: a GPU is needed")
    return dict(stats)


def run_case(strategy: str, pdbs: int, expert: int, remat: str, timeout_s: float) -> dict[str, Any]:
    """One configuration in its own process; ``failed`` holds the last line it wrote, if any."""
    case = {"strategy": strategy, "pdbs": pdbs, "remat": remat}
    command = [sys.executable, __file__, "--one", strategy, str(pdbs), str(expert), remat]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {**case, "failed": f"no result within {timeout_s:.0f} s"}
    if done.returncode == 0:
        return {**case, **json.loads(done.stdout.splitlines()[-1])}
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if "RESOURCE_EXHAUSTED" in line or "Error" in line]
    return {**case, "failed": (telling or lines or ["no output"])[-1][:500]}


def machine_of_gpus() -> dict[str, Any]:
    """Card, driver, versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    cards = subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()
    code = "import jax, jaxlib; print(jax.__version__, jaxlib.__version__)"
    versions = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    return {"cards": cards, "jax": versions[0], "jaxlib": versions[1]}


def main() -> None:
    """Run all configurations and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--expert", type=int, default=2)
    parser.add_argument("--remat", default="full")
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no case after this")
    parser.add_argument("--case-limit-s", type=float, default=150)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_memory.json")
    arguments = parser.parse_args()
    if arguments.one:
        strategy, pdbs, expert, remat = arguments.one
        print(json.dumps(measure_here(strategy, int(pdbs), int(expert), remat)))
        return
    begin(parser.prog, arguments.expert, arguments.out)
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    head = {
        "date": datetime.date.today().isoformat(),
        "machine": machine_of_gpus(),
        "model": {**MODEL, "attention": {"mla": MLA}},
        "sequence": SEQUENCE,
        "expert": arguments.expert,
        "steps": STEPS,
    }
    for strategy, pdbs in CASES:
        if time.monotonic() - began > arguments.limit_s:
            break
        row = run_case(strategy, pdbs, arguments.expert, arguments.remat, arguments.case_limit_s)
        rows.append(row)
        print(_line(row), flush=True)
        write_result(arguments.out, {**head, "cases": rows})


def _line(row: dict[str, Any]) -> str:
    name = f"{row['strategy']:<18} pdbs {row['pdbs']:<2}"
    if "failed" in row:
        return f"{name} failed: {row['failed'][:90]}"
    gib = 2**30
    peak = max(row["allocator_peak_bytes"])
    return (
        f"{name} args {row['argument_bytes'] / gib:6.2f} temp {row['temp_bytes'] / gib:6.2f} "
        f"peak {peak / gib:6.2f} GiB, step {min(row['step_s']) * 1e3:7.1f} ms"
    )


if __name__ == "__main__":
    main()
