"""Question: what does each strategy reach on two GPUs: tokens/s, peak memory, largest batch?

    python benchmarks/gpu_ab.py [--strategy NAME] [--only-common] [--out FILE.json] [--smoke]

Each strategy is a process of its own, since an allocator's peak is that of its process. It trains
the model of `gpu_ab_setting` at the common pdbs on synthetic tokens and on real text. Then come the
largest pdbs: first what the closed form of `moeprof memory` fits into the pool, then what the plans
of the compiled steps say, each in a process of its own. A strategy's largest is that of its rows
that ran.

Synthetic tokens are uniform over the vocabulary; text is the standard library's sources as bytes.
Weights stay where they were drawn (the learning rate is tiny, the router's bias is off), so that
every strategy routes alike: as an untrained router does. ``busiest_expert_over_mean`` is the
highest load of an expert over the mean of its layer, ``busiest_rank_over_mean`` that of a rank's
received rows, each averaged over layers and then over steps. ``tokens_s_device`` is pdbs ·
sequence over the median step; a step is timed from its call until its loss has arrived.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_ab_setting import (
    COMMON_PDBS,
    EXPERT,
    FEWER_PDBS,
    MLA,
    MODEL,
    POOL_BYTES,
    SEQUENCE,
    SMOKE_SEQUENCE,
    STRATEGIES,
    model_of,
    projected_largest,
)
from gpu_machine import gpu_machine
from gpu_timing import telling_line

RESULTS = Path(__file__).parent / "results"
WARM_UP, STEPS = 3, 10
# Where a step takes longer than this, one is warm-up and three are timed; above four times as long
# the second alone is timed.
SLOW_STEP_S = 1.5
LEARNING_RATE = 1e-7


def run_here(strategy_name: str, batches: list[tuple[int, str]], smoke: bool) -> None:
    """Print a line of JSON per (pdbs, data), in this process; ends at the first that fails."""
    import jax

    from moeprof.model.layout import build_mesh
    from moeprof.model.optimizer import OptimizerSettings
    from moeprof.model.train import make_job, make_step
    from moeprof.specs.plan import fill_plan
    from moeprof.specs.strategy import parse_strategy

    model = model_of(smoke=smoke)
    plan = fill_plan(jax.device_count(), fsdp=-1, expert=EXPERT)
    mesh = build_mesh(plan, model)
    job = make_job(model, plan, parse_strategy(strategy_name), mesh)
    settings = OptimizerSettings(learning_rate=LEARNING_RATE, weight_decay=0.0, bias_speed=0.0)
    state = state_on_devices(job, mesh, settings)
    step = make_step(job, mesh, settings)
    before = peaks()
    compiled: dict[int, Any] = {}
    sequence = SMOKE_SEQUENCE if smoke else SEQUENCE
    for pdbs, data in batches:
        case = {"pdbs": pdbs, "data": data}
        try:
            batch = batch_of(data, pdbs * plan.devices, sequence, model.vocab, mesh)
            began = time.perf_counter()
            if pdbs not in compiled:
                compiled = {pdbs: step.lower(state, batch).compile()}
            case["compile_s"] = round(time.perf_counter() - began, 2)
            state, measured = timed_steps(compiled[pdbs], state, batch, pdbs * sequence)
            case |= measured
        except Exception as error:  # out of memory is a result; the state is gone with it
            print(json.dumps({**case, "failed": telling_line(error)}), flush=True)
            return
        memory = compiled[pdbs].memory_analysis()
        if memory is not None:
            case["planned_bytes"] = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        case |= {"peak_before_step_bytes": before, "peak_bytes": peaks()}
        print(json.dumps(case), flush=True)


def timed_steps(compiled: Any, state: Any, batch: Any, tokens: int) -> tuple[Any, dict[str, Any]]:
    """The state after warm-up and timed steps on one batch, and what was measured."""
    import numpy as np

    times: list[float] = []
    warm_up, steps = WARM_UP, STEPS
    expert_loads, rank_loads = [], []
    while len(times) < warm_up + steps:
        began = time.perf_counter()
        state, report = compiled(state, batch)
        loss = float(report.loss)
        times.append(time.perf_counter() - began)
        if len(times) == 2 and times[1] > SLOW_STEP_S:
            warm_up, steps = (1, 1) if times[1] > 4 * SLOW_STEP_S else (1, 3)
        expert_loads.append(_over_mean(np.asarray(report.tokens_per_expert)))
        rank_loads.append(_over_mean(np.asarray(report.received_rows)))
    timed = times[warm_up:]
    median_s = statistics.median(timed)
    lower, _, upper = statistics.quantiles(timed * 2, n=4, method="inclusive")
    return state, {
        "loss": loss,
        "step_ms": round(median_s * 1e3, 3),
        "step_ms_quartiles": [round(lower * 1e3, 3), round(upper * 1e3, 3)],
        "first_step_s": round(times[0], 3),
        "steps": len(timed),
        "tokens_s_device": round(tokens / median_s, 1),
        "busiest_expert_over_mean": round(statistics.mean(expert_loads), 3),
        "busiest_rank_over_mean": round(statistics.mean(rank_loads), 3),
    }


def _over_mean(loads: Any) -> float:
    """Largest over mean along the last axis, averaged over the others."""
    return float((loads.max(-1) / loads.mean(-1)).mean())


def state_on_devices(job: Any, mesh: Any, settings: Any) -> Any:
    """A `TrainState` as `init_state` makes it, but with weights that each device draws itself.

    Billions of normal numbers take a host half a minute. Norms are ones, biases and sinks zeros,
    matrices normal with variance 1/fan_in.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    from moeprof.model.layout import nest
    from moeprof.model.optimizer import adamw
    from moeprof.model.train import TrainState, state_specs, weight_shapes
    from moeprof.specs.parameters import parameters

    optimizer = adamw(settings)
    specs = state_specs(job, optimizer)
    trained = [p for p in parameters(job.model) if p.is_trained]
    fan_in = nest({p.path: p.fan_in for p in trained})
    is_zero = nest({p.path: p.path[-1].endswith(("_bias", "sinks")) for p in trained})
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    local = jax.tree.map(
        lambda whole, place: jax.ShapeDtypeStruct(place.shard_shape(whole.shape), whole.dtype),
        weight_shapes(job.model),
        shardings.weights,
    )

    def draw() -> Any:
        here = jax.lax.axis_index(mesh.axis_names)
        key = jax.random.fold_in(jax.random.key(0, impl="unsafe_rbg"), here)
        shapes, tree = jax.tree.flatten(local)
        keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(shapes))))

        def one(key: Any, like: Any, fan_in: int, is_zero: bool) -> Any:
            if is_zero or not fan_in:
                return jnp.full(like.shape, 0 if is_zero else 1, like.dtype)
            return jax.random.normal(key, like.shape, like.dtype) * like.dtype.type(fan_in**-0.5)

        return jax.tree.map(one, keys, local, fan_in, is_zero)

    drawn = jax.shard_map(draw, mesh=mesh, in_specs=(), out_specs=specs.weights, check_vma=False)
    weights = jax.jit(drawn)()
    moments = jax.jit(optimizer.init, out_shardings=shardings.optimizer)(weights)
    bias = jnp.zeros((job.model.moe_layers, job.model.experts), jnp.float32)
    return TrainState(weights, jax.device_put(bias, shardings.bias), moments)


def batch_of(data: str, sequences: int, length: int, vocab: int, mesh: Any) -> Any:
    """int32 [sequences, length + 1] on the mesh: uniform tokens, or bytes of real text."""
    import numpy as np

    from moeprof.model.data import batches
    from moeprof.model.layout import put_batch

    if data == "text":
        return put_batch(next(batches(sequences, length)), mesh)
    random = np.random.default_rng(0)
    return put_batch(random.integers(0, vocab, (sequences, length + 1), dtype=np.int32), mesh)


def peaks() -> list[int]:
    """The allocator's peak of each device in bytes; empty where a backend keeps no account."""
    import jax

    stats = [device.memory_stats() for device in jax.local_devices()]
    return [s["peak_bytes_in_use"] for s in stats if s]


def run_strategy(
    strategy: str, batches: list[tuple[int, str]], smoke: bool, fraction: float, timeout_s: float
) -> list[dict[str, Any]]:
    """One strategy in a process of its own: a row per batch, the last perhaps with ``failed``."""
    command = [sys.executable, __file__, "--one", strategy, json.dumps(batches), str(int(smoke))]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.4f}"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(command, stdout=out, stderr=problems, env=environment)
        try:
            status: int | None = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
        out.seek(0)
        rows = [json.loads(line) for line in out if line.startswith("{")]
        if status == 0:
            return rows
        problems.seek(0)
        lines = [line.strip() for line in problems if line.strip()]
    telling = [line for line in lines if "RESOURCE_EXHAUSTED" in line or "Error" in line]
    reason = (telling or lines or ["no output"])[-1][:300]
    if status is None:
        reason = f"no result within {timeout_s:.0f} s; last line: {reason}"
    pdbs, data = batches[min(len(rows), len(batches) - 1)]
    return [*rows, {"pdbs": pdbs, "data": data, "failed": reason}]


Attempt = Callable[[int], dict[str, Any]]


def reach(common: dict[str, Any], projected: int, attempt: Attempt) -> list[dict[str, Any]]:
    """Rows of the attempts at the largest batch; at most three.

    Where the projected one runs, the line through its plan and that of the ``common`` row leads to
    the next; where one runs out of memory, half the way back to what ran is next.
    """
    rows: list[dict[str, Any]] = []
    ran, failed, pdbs = common["pdbs"], 0, projected
    while len(rows) < 3 and pdbs > ran and pdbs != failed:
        rows.append(attempt(pdbs))
        if "failed" not in rows[-1]:
            slope = (rows[-1]["planned_bytes"] - common["planned_bytes"]) / (pdbs - common["pdbs"])
            room = POOL_BYTES - rows[-1]["planned_bytes"]
            ran, pdbs = pdbs, pdbs + math.floor(room / slope)
            if failed:
                pdbs = min(pdbs, failed - 1)
        elif "RESOURCE_EXHAUSTED" in rows[-1]["failed"]:
            failed, pdbs = pdbs, (ran + pdbs) // 2
        else:
            break
    return rows


def pool_fraction(cards: list[str]) -> float:
    """The share of a card's memory that leaves JAX a pool of `POOL_BYTES`, at most 0.92."""
    if not cards:
        return 0.75
    total_bytes = float(cards[0].split(",")[2].split()[0]) * 2**20
    return min(0.92, POOL_BYTES / (total_bytes - 0.5 * 2**30))


def main() -> None:
    """Run every strategy, print a table, write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--only-common", action="store_true", help="not the largest pdbs")
    parser.add_argument("--limit-s", type=float, default=3600, help="for all strategies together")
    parser.add_argument("--case-limit-s", type=float, default=150, help="for one strategy")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_ab.json")
    options = parser.parse_args()
    if options.one:
        strategy, batches, smoke = options.one
        run_here(strategy, [tuple(b) for b in json.loads(batches)], smoke == "1")
        return
    machine = gpu_machine()
    ends = time.monotonic() + options.limit_s
    document: dict[str, Any] = {
        "machine": machine,
        "model": {**MODEL, "attention": {"mla": MLA}},
        "sequence": SEQUENCE,
        "expert": EXPERT,
        "pool_bytes": POOL_BYTES,
        "strategies": {},
    }
    for strategy in options.strategy or STRATEGIES:
        most = 0 if options.smoke else projected_largest(strategy)
        fraction = pool_fraction(machine["cards"])

        def attempt(
            batches: list[tuple[int, str]], strategy: str = strategy, fraction: float = fraction
        ) -> list[dict[str, Any]]:
            limit_s = max(1.0, min(options.case_limit_s, ends - time.monotonic()))
            return run_strategy(strategy, batches, options.smoke, fraction, limit_s)

        pdbs = FEWER_PDBS.get(strategy, COMMON_PDBS)
        rows = attempt([(pdbs, "synthetic"), (pdbs, "text")])
        if "planned_bytes" in rows[0] and not options.only_common:
            rows += reach(rows[0], most, lambda pdbs, run=attempt: run([(pdbs, "synthetic")])[-1])
        document["strategies"][strategy] = {"projected_largest_pdbs": most, "runs": rows}
        for row in rows:
            print(line(strategy, row), flush=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")


def line(strategy: str, row: dict[str, Any]) -> str:
    """One row of the table."""
    name = f"{strategy:<18} pdbs {row['pdbs']:<3} {row['data']:<10}"
    if "failed" in row:
        return f"{name} failed: {row['failed'][:100]}"
    peak = max(row["peak_bytes"], default=0) / 2**30
    return (
        f"{name} {row['step_ms']:9.1f} ms {row['tokens_s_device']:10,.0f} tokens/s/device  peak "
        f"{peak:6.2f} GiB  busiest expert {row['busiest_expert_over_mean']:5.2f}, rank "
        f"{row['busiest_rank_over_mean']:4.2f} × mean  compiled in {row['compile_s']:.0f} s"
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
