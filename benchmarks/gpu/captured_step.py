"""Question: what does one strategy's training step compute, while a profiler watches?

    moeprof capture benchmarks/gpu/captured_step.py --strategy sparse-gmm-deepep --answers FILE

Trains a model of three layers on two devices for a few steps and writes what it knows of them
without any profile: routing and received rows of every step, the loss, the compiler's sizes, the
allocators' peaks. `captures.py` runs it for every strategy.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

MODEL: dict[str, Any] = {
    "layers": 3,
    "dense_layers": 1,
    "hidden": 512,
    "heads": 4,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 512,
    "dense_ffn": 1024,
    "vocab": 1024,
    "compute_dtype": "bfloat16",
    "weight_dtype": "bfloat16",
}
ATTENTION = {"kv_heads": 2, "head_dim": 128}
SEQUENCE, PDBS, EXPERT = 512, 2, 2
STEPS = 7
POLL_S = 0.05
_PARTS = ("argument", "output", "alias", "temp")


def train(strategy: str, ready: Path | None, go: Path | None, limit_s: float) -> dict[str, Any]:
    """Compile, wait until `go` is there, and train; returns the answers.

    Raises:
        SystemExit: nobody said go within `limit_s` seconds.
    """
    from moeprof.model.data import batches
    from moeprof.model.layout import build_mesh, put_batch
    from moeprof.model.train import init_state, make_job, make_step
    from moeprof.specs.model import GqaSpec, ModelSpec
    from moeprof.specs.plan import fill_plan
    from moeprof.specs.remat import Remat
    from moeprof.specs.strategy import parse_strategy

    model = ModelSpec(attention=GqaSpec(**ATTENTION), **MODEL)
    plan = fill_plan(jax.device_count(), fsdp=-1, expert=EXPERT, remat=Remat("full"))
    mesh = build_mesh(plan, model)
    job = make_job(model, plan, parse_strategy(strategy), mesh)
    state = init_state(job, mesh)
    text = batches(PDBS * plan.devices, SEQUENCE)
    compiled = make_step(job, mesh).lower(state, put_batch(next(text), mesh)).compile()
    if ready is not None and go is not None:
        ready.touch()
        _wait_for(go, limit_s)
    steps = []
    for number in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            state, report = compiled(state, put_batch(next(text), mesh))
            _record(number, report, model.dense_layers)
            # Waits for the devices: a step of the profile holds its own work, whole.
            steps.append(
                {
                    "step": number,
                    "loss": float(report.loss),
                    "tokens_per_expert": np.asarray(report.tokens_per_expert).tolist(),
                    "received_rows": np.asarray(report.received_rows).tolist(),
                }
            )
    sizes = compiled.memory_analysis()
    return {
        "strategy": strategy,
        "model": {**MODEL, "attention": {"gqa": ATTENTION}},
        "plan": {"expert": plan.expert, "fsdp": plan.fsdp, "remat": "full"},
        "sequence": SEQUENCE,
        "pdbs": PDBS,
        "steps": steps,
        "memory_analysis": {
            f"{part}_bytes": getattr(sizes, f"{part}_size_in_bytes") for part in _PARTS
        },
        "allocator_peak_bytes": [_peak(device) for device in jax.local_devices()],
        "devices": [device.device_kind for device in jax.local_devices()],
        "jax": jax.__version__,
    }


def _wait_for(go: Path, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not go.exists():
        if time.monotonic() > end:
            raise SystemExit(f"expected {go} within {limit_s:.0f} s, found none")
        time.sleep(POLL_S)


def _record(step: int, report: Any, first_layer: int) -> None:
    """Into the run's own tables; `captures.py pack` makes them where pyarrow is absent."""
    if importlib.util.find_spec("pyarrow") is None:
        return
    import moeprof.routing

    moeprof.routing.record(
        step,
        report.tokens_per_expert,
        received_rows=report.received_rows,
        first_layer=first_layer,
    )


def _peak(device: jax.Device) -> int | None:
    stats = device.memory_stats()
    return int(stats["peak_bytes_in_use"]) if stats else None


def main() -> None:
    """Train and write the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--ready", type=Path, help="made once the step is compiled")
    parser.add_argument("--go", type=Path, help="the steps run once this is there")
    parser.add_argument("--limit-s", type=float, default=300)
    arguments = parser.parse_args()
    answers = train(arguments.strategy, arguments.ready, arguments.go, arguments.limit_s)
    arguments.answers.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
