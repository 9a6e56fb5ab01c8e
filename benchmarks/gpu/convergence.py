"""Question: what does dropping tokens cost in loss, on real text, from the same start?

    python benchmarks/gpu/convergence.py [--set FIELD=VALUE] [--out FILE.json] [--smoke]

One device is enough: what a strategy computes does not depend on how many hold the experts. For
every router and seed (`convergence_setting`) all strategies start from the same weights and see
the same batches: the sources of Python's standard library as bytes. Three losses, nats per byte:

- ``final_loss``: mean over the last twentieth of the steps (100 of 2,000);
- ``held_out``: of the trained weights on the text held out, whole, under the same strategy;
- ``held_out_dropless``: the same weights and text, nothing dropped.

``dropped`` is the share of (token, expert) pairs that found no place, in the first twentieth of the
steps, in all and in the last; ``busiest_expert_over_mean`` the highest load of an expert over the
mean of its layer, in the last twentieth. `convergence_order` compares the strategies by pairs.

Each strategy is a process of its own on each GPU. All compile at once, untuned, since tuning takes
longer than training while others share a GPU; then they train one after the other, each GPU its own
seeds. A further seed is begun while the time that the last one took is left, so how many there are
depends on time alone. The two dropless strategies differ in rounding alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.convergence_order import comparisons, pairs_of
from gpu.convergence_setting import BIAS_SPEED, SMOKE, STRATEGIES, Setting, changed
from gpu.convergence_trainer import train_here
from gpu.gate import begin, write_result
from gpu.machine import gpu_machine

RESULTS = Path(__file__).parents[1] / "results"
MEMORY_FRACTION = "0.15"
UNTUNED = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
"""Products by cuBLAS, which is fast untuned; XLA's own are not."""
QUANTITIES = ("final_loss", "held_out", "held_out_dropless")


class Training:
    """One strategy's process on one GPU."""

    def __init__(self, strategy: str, setting: Setting, routers: list[str], gpu: str) -> None:
        """Starts the process, which compiles at once."""
        self.strategy = strategy
        self._problems: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 — until `end`
        sizes = json.dumps(dataclasses.asdict(setting))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--one", strategy, sizes, ",".join(routers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._problems,
            text=True,
            env={
                "XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_FRACTION,
                **os.environ,
                "CUDA_VISIBLE_DEVICES": gpu,
                "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {UNTUNED}",
            },
        )
        self._rows: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._rows.put(json.loads(line))
        self._rows.put(None)

    def compiled(self, ends: float) -> dict[str, Any]:
        """Wait until it has compiled: ``ready_s``, ``failed`` or ``late``."""
        return self._next(ends)

    def train(self, router: str, seed: int, ends: float) -> dict[str, Any]:
        """Train and wait: the row, ``failed`` or ``late``."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `_next` finds
            self._process.stdin.write(f"{router} {seed}\n")
            self._process.stdin.flush()
        return self._next(ends)

    def _next(self, ends: float) -> dict[str, Any]:
        """The next row until ``ends`` of the monotonic clock, else ``late``; or ``failed``."""
        try:
            row = self._rows.get(timeout=max(ends - time.monotonic(), 0.1))
        except queue.Empty:
            return {"late": f"the time was over; last line: {self._last_line()}"}
        if row is not None:
            return row
        self._process.wait(timeout=30)
        return {"failed": self._last_line()}

    def _last_line(self) -> str:
        """The line of its messages that says most."""
        self._problems.seek(0)
        lines = [line.strip() for line in self._problems if line.strip()]
        named = [line for line in lines if "Error" in line or "RESOURCE_EXHAUSTED" in line]
        return (named or lines or ["no output"])[-1][:200]

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Train with every strategy, print a row per run, write JSON after each; then the order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--router", action="append", choices=list(BIAS_SPEED))
    parser.add_argument("--limit-s", type=float, default=3600, help="for all strategies together")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, a few steps")
    parser.add_argument("--add", action="store_true", help="to the runs that FILE.json holds")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_convergence.json")
    arguments = parser.parse_args()
    if arguments.one:
        strategy, sizes, routers = arguments.one
        train_here(strategy, Setting(**json.loads(sizes)), routers.split(","))
        return
    begin(parser.prog, 1, arguments.out, smoke=arguments.smoke)
    setting = changed(SMOKE if arguments.smoke else Setting(), arguments.set)
    strategies = tuple(arguments.strategy or STRATEGIES)
    head = {
        "machine": gpu_machine(),
        "setting": dataclasses.asdict(setting),
        "bias_speed": BIAS_SPEED,
        "xla_flags": UNTUNED,
    }
    routers = arguments.router or list(BIAS_SPEED)
    runs = earlier(arguments.out, head) if arguments.add else []
    mutex = threading.Lock()
    without_result = []

    def keep(row: dict[str, Any]) -> None:
        with mutex:
            if "final_loss" not in row:
                without_result.append(row)
            if "late" in row:  # which is no result
                print(f"{row['strategy']}: {row['late']}", flush=True)
                return
            runs[:] = [run for run in runs if _which(run) != _which(row)]
            runs.append(row)
            print(line(row), flush=True)
            write(arguments.out, head, runs)

    train_all(strategies, setting, routers, time.monotonic() + arguments.limit_s, keep)
    print(comparison_lines(write(arguments.out, head, runs)))
    if without_result:
        sys.exit(f"{len(without_result)} runs ended without a result, {len(runs)} with one")


def earlier(out: Path, head: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a file with the machine and setting of ``head``; else this program ends."""
    if not out.is_file():
        sys.exit(f"{out}: expected the runs of an earlier call, found no file. Leave --add out.")
    document = json.loads(out.read_text())
    for key, now in head.items():
        before = document[key]
        if key == "machine":  # another day is no other machine
            before, now = ({**each, "date": ""} for each in (before, now))
        if before != now:
            sys.exit(f"{out}: expected {key} {now}, found {before}. Give another --out.")
    return [run for run in document["runs"] if "failed" not in run]


def _which(run: dict[str, Any]) -> tuple[Any, ...]:
    return (run.get("router"), run["strategy"], run.get("seed"))


def train_all(
    strategies: tuple[str, ...],
    setting: Setting,
    routers: list[str],
    ends: float,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Train seed after seed until ``ends`` (of the monotonic clock); each row goes to ``keep``."""
    gpus = visible_gpus()
    trainings = {gpu: [Training(s, setting, routers, gpu) for s in strategies] for gpu in gpus}
    everyone = [training for on_gpu in trainings.values() for training in on_gpu]
    try:
        # None trains while another still compiles: they would wait for each other.
        patience = (time.monotonic() + ends) / 2
        for gpu, training in [(gpu, t) for gpu, on_gpu in trainings.items() for t in on_gpu]:
            row = {"strategy": training.strategy, **training.compiled(patience)}
            if "ready_s" not in row:
                keep(row)
                trainings[gpu] = [other for other in trainings[gpu] if other is not training]
                training.end()
            else:
                print(f"{training.strategy} is compiled: {row['ready_s']:.0f} s", flush=True)
        with ThreadPoolExecutor(len(gpus)) as pool:
            seeds = {gpu: range(i, setting.seeds, len(gpus)) for i, gpu in enumerate(gpus)}
            ended = [
                pool.submit(train_seeds, trainings[gpu], routers, seeds[gpu], ends, keep)
                for gpu in gpus
            ]
            for each in ended:
                each.result()
    finally:
        for training in everyone:
            training.end()


def train_seeds(
    trainings: list[Training],
    routers: list[str],
    seeds: range,
    ends: float,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """The seeds of one GPU; a process that fails is left out from then on."""
    alive = list(trainings)
    for seed in seeds:
        began = time.monotonic()
        for router in routers:
            for training in tuple(alive):
                row = training.train(router, seed, ends)
                keep({"router": router, "strategy": training.strategy, "seed": seed, **row})
                if "final_loss" not in row:
                    alive.remove(training)
        if not alive or ends - time.monotonic() < time.monotonic() - began:
            return


def visible_gpus() -> list[str]:
    """Names of the GPUs to train on, as CUDA_VISIBLE_DEVICES has them; one empty name for none."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    return [str(index) for index in range(len(gpu_machine()["cards"]))] or [""]


def write(out: Path, head: dict[str, Any], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write what is known so far, if anything is; returns the comparisons."""
    trained = [run for run in runs if "failed" not in run]
    found = dict.fromkeys(run["strategy"] for run in trained)
    strategies = tuple(dict.fromkeys([*(s for s in STRATEGIES if s in found), *found]))
    order = [
        comparison
        for quantity in QUANTITIES
        for comparison in comparisons(trained, pairs_of(strategies), quantity)
    ]
    if runs:
        write_result(out, {**head, "runs": runs, "order": order})
    return order


def line(row: dict[str, Any]) -> str:
    """One row of the table, 80 columns."""
    if "failed" in row:
        return f"{row['strategy']}: failed: {row['failed'][:150]}"
    return (
        f"{row['router']:<10} {row['seed']} {row['strategy']:<17} final "
        f"{row['final_loss']:.4f} held out {row['held_out']:.4f} dropped "
        f"{100 * row['dropped']['last']:4.1f} % {row['seconds']:.0f} s"
    )


def comparison_lines(rows: list[dict[str, Any]]) -> str:
    """The comparisons under what is compared, 80 columns."""
    lines = []
    for (quantity, router), group in itertools.groupby(
        rows, key=lambda row: (row["quantity"], row["router"])
    ):
        lines.append(f"{quantity.replace('_', ' ')}, {router} router, nats per byte:")
        for row in group:
            error = row["standard_error"]
            spread = "" if error is None else f" ± {error:.4f}"
            lines.append(
                f"  {row['first']:>12} − {row['second']:<17} {row['difference']:+.4f}{spread:<9} "
                f"{row['verdict']}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
