"""Question: what does each strategy reach: tokens/s, peak memory, largest batch?

    python benchmarks/gpu/ab.py [--devices N] [--strategy NAME] [--out FILE.json] [--smoke]

Each strategy is a process of its own, since an allocator's peak is that of its process. It trains
the model of `ab_setting` at the common pdbs on synthetic tokens and on real text. When all have
done so come the largest pdbs (`ab_largest`), each strategy again in a process of its own, which
ends with the batch that runs out of memory. On one device there is no exchange: the figures are of
compute alone.

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
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.ab_largest import largest_of
from gpu.ab_setting import (
    COMMON_PDBS,
    FEWER_PDBS,
    MLA,
    MODEL,
    POOL_BYTES,
    SEQUENCE,
    STRATEGIES,
    projected_largest,
)
from gpu.gate import begin, write_result
from gpu.machine import gpu_machine

RESULTS = Path(__file__).parents[1] / "results"
PROCESS = Path(__file__).with_name("ab_process.py")


class Ended(NamedTuple):
    """The rows that a process printed; why it failed, if it did; whether its time was over."""

    rows: list[dict[str, Any]]
    reason: str | None
    is_late: bool = False


def in_process(options: list[str], devices: int, fraction: float, timeout_s: float) -> Ended:
    """What `ab_process` made of ``options`` within ``timeout_s``."""
    environment = {
        **os.environ,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.4f}",
        "CUDA_VISIBLE_DEVICES": ",".join(visible_devices()[:devices]),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
        f"--xla_force_host_platform_device_count={devices}",
    }
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as problems:
        command = [sys.executable, str(PROCESS), *options]
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
            return Ended(rows, None)
        problems.seek(0)
        lines = [line.strip() for line in problems if line.strip()]
    telling = [line for line in lines if "RESOURCE_EXHAUSTED" in line or "Error" in line]
    reason = (telling or lines or ["no output"])[-1][:300]
    if status is None:
        reason = f"no result within {timeout_s:.0f} s; last line: {reason}"
    return Ended(rows, reason, is_late=status is None)


def visible_devices() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(64)]


def pool_fraction(cards: list[str]) -> float:
    """The share of a card's memory that leaves JAX a pool of `POOL_BYTES`, at most 0.92."""
    if not cards:
        return 0.75
    total_bytes = float(cards[0].split(",")[2].split()[0]) * 2**20
    return min(0.92, POOL_BYTES / (total_bytes - 0.5 * 2**30))


def main() -> None:
    """Run every strategy, print a table, write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2, help="how many share the experts")
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--only-common", action="store_true", help="not the largest pdbs")
    parser.add_argument("--only-largest", action="store_true", help="of strategies in FILE.json")
    parser.add_argument("--add", action="store_true", help="to what FILE.json holds")
    parser.add_argument("--limit-s", type=float, default=3600, help="for all strategies together")
    parser.add_argument("--case-limit-s", type=float, default=150, help="for one strategy")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_ab.json")
    options = parser.parse_args()
    begin(parser.prog, options.devices, options.out, smoke=options.smoke)
    compare(options)


def compare(options: argparse.Namespace) -> None:
    """First every strategy at the common pdbs, then their largest."""
    machine = gpu_machine()
    machine["cards"] = machine["cards"][: options.devices]
    ends = time.monotonic() + options.limit_s
    strategies = options.strategy or STRATEGIES
    document: dict[str, Any] = {
        "machine": machine,
        "model": {**MODEL, "attention": {"mla": MLA}},
        "sequence": SEQUENCE,
        "expert": options.devices,
        "pool_bytes": POOL_BYTES,
        "strategies": {},
    }
    without_result = 0
    if options.add or options.only_largest:
        document = earlier(options.out, machine)

    def child(*arguments: Any) -> Ended:
        limit_s = max(1.0, min(options.case_limit_s, ends - time.monotonic()))
        texts = [str(argument) for argument in (*arguments, int(options.smoke))]
        return in_process(texts, options.devices, pool_fraction(machine["cards"]), limit_s)

    for strategy in () if options.only_largest else strategies:
        pdbs = FEWER_PDBS.get(strategy, COMMON_PDBS)
        batches = [(pdbs, "synthetic"), (pdbs, "text")]
        ended = child("common", strategy, json.dumps(batches))
        rows = list(ended.rows)
        if ended.reason is not None:
            pdbs, data = batches[min(len(rows), len(batches) - 1)]
            rows.append({"pdbs": pdbs, "data": data, "failed": ended.reason})
        for row in rows:
            print(line(strategy, row), flush=True)
        without_result += sum("failed" in row for row in rows)
        if ended.is_late:  # which is no result
            rows = ended.rows
        projected = projected_largest(strategy, options.devices)
        document["strategies"][strategy] = {"projected_largest_pdbs": projected, "runs": rows}
        if any(found["runs"] for found in document["strategies"].values()):
            write_result(options.out, document)
    for strategy in () if options.only_common else strategies:
        found = document["strategies"].get(strategy, {"runs": []})
        known = [row for row in found["runs"] if "planned_bytes" in row]
        if not known or ends - time.monotonic() < 10:
            print(f"{strategy:<18} largest pdbs: not tried", flush=True)
            without_result += 1
            continue
        pdbs, planned = known[0]["pdbs"], known[0]["planned_bytes"]
        most = found["projected_largest_pdbs"]
        pool = 2 * planned if options.smoke else POOL_BYTES
        ended = child("largest", strategy, pdbs, planned, most, pool)
        found["largest"] = largest_of(pdbs, ended.rows)
        print(largest_line(strategy, found["largest"], ended.reason), flush=True)
        without_result += ended.reason is not None
        write_result(options.out, document)
    if without_result:
        sys.exit(f"{without_result} without a result")


def earlier(out: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """What a file holds, if it was measured on the same cards; else this program ends."""
    if not out.is_file():
        sys.exit(f"{out}: expected results of an earlier run, found no file. Leave --add out.")
    document: dict[str, Any] = json.loads(out.read_text())
    before, now = (
        [card.split(",")[0] for card in each["cards"]] for each in (document["machine"], machine)
    )
    if before != now:
        sys.exit(
            f"{out}: expected results of {', '.join(now)}, found those of {', '.join(before)}. "
            "Give another --out."
        )
    return document


def largest_line(strategy: str, found: dict[str, Any], reason: str | None) -> str:
    """A strategy's largest batch and a line per attempt, 80 columns."""
    bound = "" if found["is_bounded"] else "at least "
    lines = [f"{strategy:<18} largest pdbs {bound}{found['pdbs']}"]
    for row in found["tried"]:
        outcome = row["failed"][:40] if "failed" in row else "ran"
        lines.append(f"  {row['pdbs']:>3}, plan {row['planned_bytes'] / 2**30:.2f} GiB: {outcome}")
    if reason is not None:
        lines.append(f"  {reason[:78]}")
    return "\n".join(lines)


def line(strategy: str, row: dict[str, Any]) -> str:
    """A row of the table in two lines, 80 columns."""
    name = f"{strategy:<18} pdbs {row['pdbs']:<3} {row['data']:<10}"
    if "failed" in row:
        return f"{name} failed:\n  {row['failed'][:78]}"
    peak = max(row["peak_bytes"], default=0) / 2**30
    return (
        f"{name} {row['step_ms']:9.1f} ms {row['tokens_s_device']:10,.0f} tokens/s/device\n"
        f"  peak {peak:.2f} GiB, busiest expert {row['busiest_expert_over_mean']:.2f} and rank "
        f"{row['busiest_rank_over_mean']:.2f} × mean, compiled in {row['compile_s']:.0f} s"
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
