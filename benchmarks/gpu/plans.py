"""Question: does a step take on a GPU what `moeprof.plan` says that it will?

    python benchmarks/gpu/plans.py [--case plain] [--out FILE.json]

Each case of `plans_steps.py` is planned for one device, and run on one, in processes of their own:
an allocator's peak is that of its process. Argument bytes, the peak after three steps, the
executable's own `memory_analysis` and the median of ten steps stand beside what was planned. What
lies on the device beside the arguments before the first step is taken off the peak. All steps are
planned first, at the same time, beside the GPU, of which planning must take nothing: the
allocators of the processes that plan, and those whom the driver names, say whether it did.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result
from gpu.machine import gpu_machine
from gpu.plans_steps import BUNDLED, CASES, made, why_absent

RESULTS = Path(__file__).parents[1] / "results"
HARDWARE = "h200_sxm"
MEMORY_STEPS, TIMED_STEPS = 3, 10
PLAN_LIMIT_S, RUN_LIMIT_S = 120, 90
PARTS = ("argument", "output", "alias", "temp", "generated_code")


def plan_here(name: str, *, smoke: bool) -> dict[str, Any]:
    """What is planned in this process, on whose device the caller already has something."""
    import jax
    import jax.numpy as jnp

    import moeprof

    case = made(name, smoke=smoke)
    held = jax.block_until_ready(jnp.ones(1024))
    before = _stats()
    began = time.perf_counter()
    found = moeprof.plan(case.step, *case.like, hardware=HARDWARE, devices=1)
    took_s = time.perf_counter() - began
    roof = found.roofline
    return {
        "took_s": round(took_s, 2),
        "compile_s": round(found.compile_s, 2),
        "compiler": found.compiler,
        "argument_bytes": found.arguments_bytes,
        "output_bytes": found.outputs_bytes,
        "alias_bytes": found.aliased_bytes,
        "temp_bytes": found.temporaries_bytes,
        "constant_bytes": found.constants_bytes,
        "library_temp_bytes": found.library_temporaries_bytes,
        "peak_bytes": found.peak_bytes,
        "peak_range_bytes": list(found.peak_range),
        "flops": found.flops,
        "known_flops": found.known_flops,
        "at_least_s": roof.at_least_s,
        "at_most_s": roof.at_most_s,
        "no_at_most": roof.reason,
        "rates": roof.rates,
        "unknowns": found.unknowns.to_dict("records"),
        "notes": list(found.notes),
        "device_before": before,
        "device_after": _stats(),
        "held_sum": float(held.sum()),
    }


def run_here(name: str, *, smoke: bool) -> dict[str, Any]:
    """What the step takes in this process, on the device that JAX sees.

    ``no_kernels`` says why the bundled model ran without our kernels, another program than planned.
    """
    import jax

    from moeprof.kernels.backends.gpu_library import unavailable_reason

    case = made(name, smoke=smoke)
    state, tokens = jax.block_until_ready(case.arguments())
    real = sum(leaf.nbytes for leaf in jax.tree.leaves((state, tokens)))
    began = time.perf_counter()
    compiled = case.step.lower(state, tokens).compile()
    compile_s = time.perf_counter() - began
    before = _stats()
    times: list[float] = []
    after: dict[str, int] = {}
    while len(times) < MEMORY_STEPS + TIMED_STEPS:
        began = time.perf_counter()
        state, told = jax.block_until_ready(compiled(state, tokens))
        times.append(time.perf_counter() - began)
        if len(times) == MEMORY_STEPS:
            after = _stats()
    sizes = compiled.memory_analysis()
    row = {f"{part}_bytes": getattr(sizes, f"{part}_size_in_bytes") for part in PARTS}
    timed = times[MEMORY_STEPS:]
    return {
        "compile_s": round(compile_s, 2),
        "real_argument_bytes": real,
        **row,
        "device_before": before,
        "device_after": after,
        **_peak(before, after, real),
        "step_s": statistics.median(timed),
        "steps_s": [round(each, 6) for each in times],
        "no_kernels": unavailable_reason() if name in BUNDLED else None,
        "told": [float(leaf) for leaf in jax.tree.leaves(told) if leaf.ndim == 0],
    }


def _stats() -> dict[str, int]:
    """Of the allocator of the first device; empty where a backend keeps no account."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    return {name: stats[name] for name in ("bytes_in_use", "peak_bytes_in_use") if name in stats}


def _peak(before: dict[str, int], after: dict[str, int], real: int) -> dict[str, Any]:
    """The peak of the steps without what lay there beside their arguments.

    A peak that was as high before the first step is that of drawing weights or tuning kernels.
    """
    if not before:
        return {"peak_bytes": None, "beside_bytes": None, "is_of_steps": None}
    beside = before["bytes_in_use"] - real
    return {
        "peak_bytes": after["peak_bytes_in_use"] - beside,
        "beside_bytes": beside,
        "is_of_steps": after["peak_bytes_in_use"] > before["peak_bytes_in_use"],
    }


def in_process(what: str, name: str, limit_s: float, *, smoke: bool) -> dict[str, Any]:
    """`plan_here` or `run_here` in a process of its own; ``failed`` says why there is nothing."""
    if limit_s <= 0:
        return {"failed": "not started, the time of all cases is over"}
    command = [sys.executable, __file__, "--one", what, name, *(["--smoke"] if smoke else [])]
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=env)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {limit_s:.0f} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if "RESOURCE_EXHAUSTED" in line or "Error" in line]
    return {"failed": (telling or lines or ["no output"])[-1][:500]}


def names_on_gpus() -> set[str]:
    """Processes that the driver says hold memory of a GPU, as ``PID COMMAND``, without folders."""
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return set()
    found = set()
    for pid in listed.split():
        line = Path(f"/proc/{pid}/cmdline")
        if pid.isdigit() and line.exists() and (words := line.read_text().strip("\0")):
            found.add(" ".join([pid, *(Path(word).name for word in words.split("\0"))])[:200])
    return found


def plan_all(
    names: list[str], limit_s: float, *, smoke: bool
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The plans by case, and every process that was seen on a GPU meanwhile."""
    seen: set[str] = set()
    workers = max(1, min(len(names), (os.cpu_count() or 2) // 2))
    ends = time.monotonic() + limit_s

    def one(name: str) -> dict[str, Any]:
        left = min(PLAN_LIMIT_S, ends - time.monotonic())
        return in_process("plan", name, left, smoke=smoke)

    with ThreadPoolExecutor(workers) as pool:
        asked: dict[str, Future[dict[str, Any]]] = {name: pool.submit(one, name) for name in names}
        while not all(each.done() for each in asked.values()):
            seen |= set() if smoke else names_on_gpus()
            time.sleep(0.5)
        return {name: each.result() for name, each in asked.items()}, sorted(seen)


def compared(plan: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """How far the plan is from the run: shares of the measured figure, and yes or no."""
    before, after = plan["device_before"], plan["device_after"]
    most = plan["at_most_s"]
    return {
        "arguments_are_equal": plan["argument_bytes"] == run["real_argument_bytes"],
        "peak_error": _error(plan["peak_bytes"], run["peak_bytes"]),
        "beyond_range": _beyond(plan["peak_range_bytes"], run["peak_bytes"]),
        "temp_error": _error(plan["temp_bytes"], run["temp_bytes"]),
        "at_least_over_measured": round(plan["at_least_s"] / run["step_s"], 4),
        "at_most_over_measured": None if most is None else round(most / run["step_s"], 4),
        "is_above_least": run["step_s"] >= plan["at_least_s"],
        "is_below_most": None if most is None else run["step_s"] <= most,
        "planning_left_allocator_alone": before == after,
    }


def _error(planned: int, measured: int | None) -> float | None:
    return round(planned / measured - 1, 4) if measured else None


def _beyond(planned: list[int], measured: int | None) -> float | None:
    """How far the measured peak is from the planned range, 0 within it."""
    if not measured:
        return None
    least, most = planned
    return round(max(least - measured, measured - most, 0) / measured, 4)


def line_of(name: str, row: dict[str, Any]) -> str:
    """A row of the table that is printed."""
    for what in ("skipped", "failed"):
        if what in row:
            return f"{name:<18} {what}: {row[what][:100]}"
    plan, run, found = row["plan"], row["run"], row["compared"]
    least, most = plan["at_least_s"] * 1e3, plan["at_most_s"]
    return (
        f"{name:<18} {_gib(plan['argument_bytes'])}{'=' if found['arguments_are_equal'] else '!'} "
        f"{_gib(plan['temp_bytes'])} {_gib(run['temp_bytes'])} {_share(found['temp_error'])} "
        f"{_gib(plan['peak_range_bytes'][0])} {_gib(plan['peak_range_bytes'][1])} "
        f"{_gib(run['peak_bytes'])} {_share(found['beyond_range'])} "
        f"{least:8.2f} {run['step_s'] * 1e3:8.2f} "
        + ("       –" if most is None else f"{most * 1e3:8.2f}")
    )


HEAD = (
    f"{'':<18} {'args':>7}  {'temp':>7} {'real':>7} {'':>8} "
    f"{'peak ≥':>7} {'peak ≤':>7} {'real':>7} {'beyond':>8} "
    f"{'least ms':>8} {'measured':>8} {'at rates':>8}"
)


def _gib(size: int | None) -> str:
    return "      –" if size is None else f"{size / 2**30:7.3f}"


def _share(error: float | None) -> str:
    return "       –" if error is None else f"{100 * error:+7.2f}%"


def row_of(name: str, plan: dict[str, Any], limit_s: float, *, smoke: bool) -> dict[str, Any]:
    """A planned case, run and compared."""
    if "failed" in plan:
        return {"failed": f"plan: {plan['failed']}"}
    run = in_process("run", name, min(RUN_LIMIT_S, limit_s), smoke=smoke)
    if "failed" in run:
        return {"plan": plan, "failed": f"run: {run['failed']}"}
    return {"plan": plan, "run": run, "compared": compared(plan, run)}


def main() -> int:
    """Plan all, run all, print and write; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--limit-s", type=float, default=290, help="no case goes on after this")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_plans.json")
    asked = parser.parse_args()
    if asked.one:
        what, name = asked.one
        print(json.dumps((plan_here if what == "plan" else run_here)(name, smoke=asked.smoke)))
        return 0
    begin(parser.prog, 1, asked.out, smoke=asked.smoke)
    ends = time.monotonic() + asked.limit_s
    chosen = asked.case or list(CASES)
    absent = {name: reason for name in chosen if (reason := why_absent(name))}
    plans, seen = plan_all(
        [name for name in chosen if name not in absent], asked.limit_s, smoke=asked.smoke
    )
    cases: dict[str, Any] = {}
    head = {"machine": gpu_machine(), "hardware": HARDWARE, "smoke": asked.smoke}
    head |= {"on_gpus_while_planning": seen}
    print(HEAD)
    for name in chosen:
        if name in absent:
            cases[name] = {"skipped": absent[name]}
        else:
            left = ends - time.monotonic()
            cases[name] = row_of(name, plans[name], left, smoke=asked.smoke)
        print(line_of(name, cases[name]), flush=True)
        write_result(asked.out, {**head, "cases": cases})
    strangers = [each for each in seen if "--one plan" not in each]
    print(f"seen on the GPU while planning: {len(seen)}, of them not the planner's: {strangers}")
    return sum("failed" in row for row in cases.values())


if __name__ == "__main__":
    sys.exit(main())
