"""Question: how fast are dispatch and combine with one process per GPU, beside one process for all?

    python benchmarks/gpu/exchange_processes.py [--out FILE.json] [--limit-s S] [--smoke]

T tokens per rank, rows of 7168 bfloat16, top-8 of 256 experts drawn evenly. A time is the
difference between a loop of many and a loop of few calls on the device, per call: the median over
repeats, of the slower process. The combine's is that of both less the dispatch's. Payload is the
bytes of rows that cross to a rank; GB/s are 10^9 bytes of it over the time. The result file is
written after each arrangement that has rows; the exit status is the number of those that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result
from gpu.machine import gpu_machine

RESULTS = Path(__file__).parents[1] / "results"
RANKS = 2
FEW, MANY, WARM_UPS, REPEATS = 5, 45, 2, 10


@dataclass(frozen=True)
class Load:
    """Tokens per rank and what a token is."""

    tokens: int
    hidden: int = 7168
    slots: int = 8
    experts: int = 256


LOADS = (Load(4096), Load(8192))
SMOKE_LOADS = (Load(32, 64, 2, 8),)


def draw(load: Load) -> tuple[np.ndarray, np.ndarray]:
    """Experts [EP, T, K] and weights [EP, T, K] of all ranks, of seed 0."""
    rng = np.random.default_rng(0)
    idx = rng.integers(0, load.experts, (RANKS, load.tokens, load.slots), np.int32)
    return idx, rng.random(idx.shape, np.float32)


def crossing_bytes(load: Load, idx: np.ndarray, rank: int) -> int:
    """Bytes of bfloat16 rows that other ranks send to ``rank``; a token crosses once."""
    sent_here = (idx // (load.experts // RANKS) == rank).any(-1).sum(-1)
    return int(sent_here.sum() - sent_here[rank]) * load.hidden * 2


def loops(load: Load) -> dict[str, Callable[[int], Callable[..., Any]]]:
    """By name, what makes a function of (x, idx, weights) that calls the exchange that often."""
    import jax

    from moeprof.kernels import moe_combine, moe_dispatch

    def dispatch(times: int) -> Callable[..., Any]:
        def run(x: Any, idx: Any, weights: Any) -> Any:
            def one(_: int, x: Any) -> Any:
                return x.at[0].set(moe_dispatch(x, idx, weights, load.experts)[0][0])

            return jax.lax.fori_loop(0, times, one, x)

        return run

    def both(times: int) -> Callable[..., Any]:
        def run(x: Any, idx: Any, weights: Any) -> Any:
            def one(_: int, x: Any) -> Any:
                recv_x, _, _, handle = moe_dispatch(x, idx, weights, load.experts)
                return x.at[0].set(moe_combine(recv_x, handle)[0])

            return jax.lax.fori_loop(0, times, one, x)

        return run

    return {"dispatch": dispatch, "both": both}


def median_us(
    mesh: Any, loop: Callable[[int], Callable[..., Any]], arrays: tuple[Any, ...]
) -> float:
    """Of the difference between a loop of many and a loop of few calls, per call."""
    import jax
    from jax.sharding import PartitionSpec

    spec = PartitionSpec("expert")

    def looped(times: int) -> Callable[..., Any]:
        run = loop(times)
        per_rank = lambda *by_rank: run(*(array[0] for array in by_rank))[None]  # noqa: E731
        mapped = jax.shard_map(per_rank, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return jax.jit(mapped)

    runs = {times: looped(times) for times in (FEW, MANY)}
    differences = []
    for _ in range(WARM_UPS + REPEATS):
        seconds = {}
        for times, run in runs.items():
            began = time.perf_counter()
            jax.block_until_ready(run(*arrays))
            seconds[times] = time.perf_counter() - began
        differences.append((seconds[MANY] - seconds[FEW]) / (MANY - FEW) * 1e6)
    return float(np.median(differences[WARM_UPS:]))


def serve(process: int, processes: int, address: str, loads: tuple[Load, ...]) -> None:
    """One process: a line of JSON per load."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from moeprof.kernels import reset_runtime, setup
    from moeprof.kernels.runtime import expert_parallel

    if processes > 1:
        jax.distributed.initialize(address, processes, process, local_device_ids=[process])
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("expert",))
    setup(mesh=mesh, hidden_bytes=loads[0].hidden * 2)
    mode = expert_parallel.frozen_state().mode.name
    sharding = NamedSharding(mesh, PartitionSpec("expert"))
    for load in loads:
        idx, weights = draw(load)
        rng = np.random.default_rng(1)
        x = rng.standard_normal((RANKS, load.tokens, load.hidden), np.float32).astype(jnp.bfloat16)
        arrays = tuple(
            jax.make_array_from_callback(array.shape, sharding, lambda at, array=array: array[at])
            for array in (x, idx, weights)
        )
        times = {name: median_us(mesh, loop, arrays) for name, loop in loops(load).items()}
        print(json.dumps({"mode": mode, "tokens": load.tokens, **times}), flush=True)
    reset_runtime()


def row(load: Load, processes: int, of_processes: list[dict[str, Any]]) -> dict[str, Any]:
    """The slower process' times, and payload over them."""
    idx, _ = draw(load)
    payload = min(crossing_bytes(load, idx, rank) for rank in range(RANKS))
    dispatch = max(one["dispatch"] for one in of_processes)
    combine = max(one["both"] for one in of_processes) - dispatch
    return {
        "processes": processes,
        "mode": of_processes[0]["mode"],
        "tokens": load.tokens,
        "hidden": load.hidden,
        "top_k": load.slots,
        "experts": load.experts,
        "payload_bytes": payload,
        "dispatch_us": round(dispatch, 1),
        "combine_us": round(combine, 1),
        "dispatch_GB_s": round(payload / dispatch / 1e3, 1),
        "combine_GB_s": round(payload / combine / 1e3, 1),
    }


def measure(
    processes: int, loads: tuple[Load, ...], options: argparse.Namespace
) -> tuple[list[dict[str, Any]], str]:
    """A row per load, and "" or why there is none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    ends = time.monotonic() + options.limit_s
    command = [sys.executable, __file__, *(["--smoke"] if options.smoke else [])]
    children = [
        subprocess.Popen(
            [*command, "--serve", json.dumps([process, processes, address])],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for process in range(processes)
    ]
    texts = []
    try:
        for child in children:
            texts.append(child.communicate(timeout=max(1.0, ends - time.monotonic()))[0])
    except subprocess.TimeoutExpired:
        return [], f"no result within {options.limit_s:g} s"
    finally:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, 9)
            child.communicate()
    statuses = [child.returncode for child in children]
    if any(statuses):
        return [], f"processes ended with statuses {statuses}"
    lines = [[json.loads(line) for line in text.splitlines() if line[:1] == "{"] for text in texts]
    found = zip(loads, zip(*lines, strict=True), strict=True)
    return [row(load, processes, list(times)) for load, times in found], ""


def main() -> None:
    """Two processes, then one for both GPUs; a line each, JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--smoke", action="store_true", help="tiny, one process, on any backend")
    parser.add_argument("--limit-s", type=float, default=120, help="per arrangement")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_exchange_processes.json")
    options = parser.parse_args()
    loads = SMOKE_LOADS if options.smoke else LOADS
    if options.serve:
        serve(*json.loads(options.serve), loads)
        return
    begin(parser.prog, RANKS, options.out, smoke=options.smoke)
    document: dict[str, Any] = {"machine": gpu_machine(), "rows": [], "failed": {}}
    for processes in (1,) if options.smoke else (RANKS, 1):
        rows, failed = measure(processes, loads, options)
        document["rows"] += rows
        if failed:
            document["failed"][f"{processes} processes"] = failed
            print(f"{processes} processes: {failed}", flush=True)
        for found in rows:
            print(
                f"{processes} processes, T {found['tokens']:>5}: dispatch"
                f" {found['dispatch_us']:.1f} us, {found['dispatch_GB_s']:.1f} GB/s;"
                f" combine {found['combine_us']:.1f} us, {found['combine_GB_s']:.1f} GB/s",
                flush=True,
            )
        if document["rows"]:
            write_result(options.out, document)
    sys.exit(len(document["failed"]))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
