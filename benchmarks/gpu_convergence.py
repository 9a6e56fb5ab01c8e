"""Question: what does dropping tokens cost in loss, on real text, from the same start?

    python benchmarks/gpu_convergence.py [--set FIELD=VALUE] [--out FILE.json] [--smoke]

One device is enough: what a strategy computes does not depend on how many hold the experts. For
every router and seed (`gpu_convergence_setting`) all strategies start from the same weights and see
the same batches: the sources of Python's standard library as bytes. Three losses, nats per byte:

- ``final_loss``: mean over the last twentieth of the steps (100 of 2,000);
- ``held_out``: of the trained weights on the text held out, whole, under the same strategy;
- ``held_out_dropless``: the same weights and text, nothing dropped.

``dropped`` is the share of (token, expert) pairs that found no place, in the first twentieth of the
steps, in all and in the last; ``busiest_expert_over_mean`` the highest load of an expert over the
mean of its layer, in the last twentieth. `gpu_convergence_order` compares the strategies by pairs.

Each strategy is a process of its own; all run at once and share the GPU, so ``seconds`` is no
measure of speed. A further seed is begun while the time that the last one took is left, so how many
there are depends on time alone. The two dropless strategies differ in the order of their sums
alone: how far apart they end is the noise of such a comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gpu_convergence_order import comparisons
from gpu_convergence_setting import (
    BIAS_SPEED,
    HELD_OUT,
    SMOKE,
    STRATEGIES,
    Setting,
    changed,
    model_of,
    whole,
    windows,
)
from gpu_machine import gpu_machine

RESULTS = Path(__file__).parent / "results"
MEMORY_FRACTION = "0.15"
PART = 1 / 20
QUANTITIES = ("final_loss", "held_out", "held_out_dropless")


class Trainer:
    """One strategy on one device: compiled once, trained from any seed with any router."""

    def __init__(self, strategy: str, setting: Setting) -> None:
        """Compiles the losses; a step is compiled when its router comes first."""
        import jax
        import numpy as np

        from moeprof.model.data import load_text
        from moeprof.model.train import make_job
        from moeprof.specs.plan import AXES, ParallelPlan
        from moeprof.specs.remat import Remat
        from moeprof.specs.strategy import parse_strategy

        self._setting = setting
        self._model = model_of(setting)
        plan = ParallelPlan(remat=Remat("none"))
        self._mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), AXES)
        self._job = make_job(self._model, plan, parse_strategy(strategy), self._mesh)
        dropless = dataclasses.replace(self._job, strategy=parse_strategy("sparse-gmm"))
        text = load_text()
        boundary = int(len(text) * (1 - HELD_OUT))
        self._seen, self._unseen = text[:boundary], text[boundary:]
        self._loss = make_loss(self._job, self._mesh)
        self._dropless_loss = make_loss(dropless, self._mesh)
        self._is_dense = strategy.startswith("dense")
        self._steps: dict[str, Any] = {}

    def train(self, router: str, seed: int) -> dict[str, Any]:
        """Train from ``seed`` and say how it went."""
        import jax
        import numpy as np

        from moeprof.model.layout import put_batch
        from moeprof.model.optimizer import OptimizerSettings
        from moeprof.model.train import init_state, make_step

        setting, mesh = self._setting, self._mesh
        settings = OptimizerSettings(
            learning_rate=setting.learning_rate, bias_speed=BIAS_SPEED[router]
        )
        state = init_state(self._job, mesh, seed=seed, settings=settings)
        if router not in self._steps:
            self._steps[router] = make_step(self._job, mesh, settings)
        step = self._steps[router]
        batches = windows(self._seen, setting.sequences, setting.sequence, seed)
        began = time.perf_counter()
        reports = []
        for index in range(setting.steps):
            state, report = step(state, put_batch(next(batches), mesh))
            reports.append((report.loss, report.received_rows, report.tokens_per_expert))
            if index % 50 == 49:
                jax.block_until_ready(report.loss)
        losses, received, loads = (
            np.array(each) for each in zip(*jax.device_get(reports), strict=True)
        )
        seconds = time.perf_counter() - began
        last = max(1, int(setting.steps * PART))
        kept = received.sum(axis=(1, 2, 3)) / loads.sum(axis=(1, 2)) if self._is_dense else None
        return {
            "final_loss": float(losses[-last:].mean()),
            "held_out": self._held_out(self._loss, state),
            "held_out_dropless": self._held_out(self._dropless_loss, state),
            "first_loss": float(losses[0]),
            "curve": [
                round(float(x.mean()), 4) for x in np.array_split(losses, min(40, len(losses)))
            ],
            "dropped": dict.fromkeys(("first", "all", "last"), 0.0)
            if kept is None
            else {
                "first": float(1 - kept[:last].mean()),
                "all": float(1 - kept.mean()),
                "last": float(1 - kept[-last:].mean()),
            },
            "busiest_expert_over_mean": float(
                (loads[-last:].max(-1) / loads[-last:].mean(-1)).mean()
            ),
            "seconds": round(seconds, 1),
            "is_finite": bool(np.isfinite(losses).all()),
        }

    def _held_out(self, loss: Callable[..., Any], state: Any) -> float:
        import numpy as np

        from moeprof.model.layout import put_batch

        setting = self._setting
        limit = 1 if setting.steps < 10 else None
        return float(
            np.mean(
                [
                    float(loss(state.weights, state.bias, put_batch(batch, self._mesh)))
                    for batch in whole(self._unseen, setting.sequences, setting.sequence, limit)
                ]
            )
        )


def make_loss(job: Any, mesh: Any) -> Any:
    """Compiled mean loss of a batch: (weights, bias, batch) -> float32 scalar, nats per token."""
    import jax

    from moeprof.model.collectives import psum
    from moeprof.model.decoder import forward
    from moeprof.model.layout import BATCH, placements
    from moeprof.model.loss import cross_entropy_sum
    from moeprof.model.train import REPLICATED
    from moeprof.specs.plan import AXES

    where = placements(job.model, job.plan)
    specs = jax.tree.map(lambda place: place.spec, where)

    def loss(weights: Any, bias: Any, batch: Any) -> Any:
        logits, _ = forward(weights, bias, batch[:, :-1], where, job)
        tokens = batch.shape[0] * (batch.shape[1] - 1) * job.plan.devices
        return psum(cross_entropy_sum(logits, batch[:, 1:]) / tokens, AXES)

    return jax.jit(
        jax.shard_map(
            loss,
            mesh=mesh,
            in_specs=(specs, REPLICATED, BATCH),
            out_specs=REPLICATED,
            check_vma=False,
        )
    )


def train_here(strategy: str, setting: Setting, routers: list[str]) -> None:
    """For each seed that comes in: a line of JSON per router, then an empty one."""
    trainer = Trainer(strategy, setting)
    for seed in map(int, sys.stdin):
        for router in routers:
            row = {"router": router, "strategy": strategy, "seed": seed}
            print(json.dumps(row | trainer.train(router, seed)), flush=True)
        print(flush=True)


@dataclasses.dataclass(frozen=True)
class Ready:
    """A strategy has trained from the seed it was given, or its process has ended."""

    training: Training
    has_ended: bool


class Training:
    """One strategy's process; what it prints goes into a queue, row by row."""

    def __init__(
        self,
        strategy: str,
        setting: Setting,
        routers: list[str],
        rows: queue.Queue[dict[str, Any] | Ready],
    ) -> None:
        """Starts the process."""
        self.strategy = strategy
        self._problems: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 — until `end`
        sizes = json.dumps(dataclasses.asdict(setting))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--one", strategy, sizes, ",".join(routers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._problems,
            text=True,
            env={"XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_FRACTION, **os.environ},
        )
        threading.Thread(target=self._pass_on, args=(rows,), daemon=True).start()

    def train(self, seed: int) -> None:
        """Let it train from ``seed``."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed, and will be found to have
            self._process.stdin.write(f"{seed}\n")
            self._process.stdin.flush()

    def _pass_on(self, rows: queue.Queue[dict[str, Any] | Ready]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                rows.put(json.loads(line))
            elif not line.strip():
                rows.put(Ready(self, has_ended=False))
        rows.put(Ready(self, has_ended=True))

    def failure(self) -> str:
        """The line of its errors that says most, of a process that has ended."""
        self._process.wait(timeout=30)
        self._problems.seek(0)
        lines = [line.strip() for line in self._problems if line.strip()]
        named = [line for line in lines if "Error" in line or "RESOURCE_EXHAUSTED" in line]
        return (named or lines or ["no output"])[-1][:300]

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()
        self._problems.close()


def main() -> None:
    """Train with every strategy, print a row per run, write JSON after each; then the order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--router", action="append", choices=list(BIAS_SPEED))
    parser.add_argument("--limit-s", type=float, default=3600, help="for all strategies together")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, a few steps")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_convergence.json")
    arguments = parser.parse_args()
    if arguments.one:
        strategy, sizes, routers = arguments.one
        train_here(strategy, Setting(**json.loads(sizes)), routers.split(","))
        return
    setting = changed(SMOKE if arguments.smoke else Setting(), arguments.set)
    strategies = tuple(arguments.strategy or STRATEGIES)
    head = {
        "machine": gpu_machine(),
        "setting": dataclasses.asdict(setting),
        "bias_speed": BIAS_SPEED,
    }
    routers = arguments.router or list(BIAS_SPEED)
    runs: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        runs.append(row)
        print(line(row), flush=True)
        write(arguments.out, head, runs, strategies)

    train_all(strategies, setting, routers, time.monotonic() + arguments.limit_s, keep)
    for comparison in write(arguments.out, head, runs, strategies):
        print(comparison_line(comparison))


def train_all(
    strategies: tuple[str, ...],
    setting: Setting,
    routers: list[str],
    ends: float,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Train seed after seed until ``ends`` (of the monotonic clock); each row goes to ``keep``."""
    rows: queue.Queue[dict[str, Any] | Ready] = queue.Queue()
    alive = {Training(strategy, setting, routers, rows) for strategy in strategies}
    everyone = list(alive)
    try:
        for seed in range(setting.seeds):
            began = time.monotonic()
            for training in alive:
                training.train(seed)
            busy = set(alive)
            while busy:
                found = rows.get(timeout=max(ends - time.monotonic(), 0.1))
                if not isinstance(found, Ready):
                    keep(found)
                    continue
                busy.discard(found.training)
                if found.has_ended:
                    alive.discard(found.training)
                    keep({"strategy": found.training.strategy, "failed": found.training.failure()})
            if not alive or ends - time.monotonic() < time.monotonic() - began:
                break
    except queue.Empty:
        print("the time is over; what was not complete is left out", flush=True)
    finally:
        for training in everyone:
            training.end()


def write(
    out: Path, head: dict[str, Any], runs: list[dict[str, Any]], strategies: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Write what is known so far; returns the comparisons."""
    trained = [run for run in runs if "failed" not in run]
    order = [
        comparison
        for quantity in QUANTITIES
        for comparison in comparisons(trained, strategies, quantity)
    ]
    out.write_text(json.dumps({**head, "runs": runs, "order": order}, indent=1) + "\n")
    return order


def line(row: dict[str, Any]) -> str:
    """One row of the table, 80 columns."""
    if "failed" in row:
        return f"{row['strategy']}: failed: {row['failed'][:100]}"
    return (
        f"{row['router']:<10} seed {row['seed']} {row['strategy']:<17} final "
        f"{row['final_loss']:.4f} held out {row['held_out']:.4f} dropped "
        f"{100 * row['dropped']['last']:4.1f} %"
    )


def comparison_line(row: dict[str, Any]) -> str:
    """One comparison, 80 columns and its quantity."""
    error = row["standard_error"]
    spread = "" if error is None else f" ± {error:.4f}"
    return (
        f"{row['quantity']}, {row['router']}: {row['first']} − {row['second']} = "
        f"{row['difference']:+.4f}{spread}: {row['verdict']}"
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
