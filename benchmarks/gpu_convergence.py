"""Question: what does dropping tokens cost in loss, on real text, from the same start?

    python benchmarks/gpu_convergence.py [--steps 2000] [--out FILE.json] [--smoke]

Every strategy starts from the same weights and sees the same batches: the sources of Python's
standard library as bytes, the last twentieth held out. The final loss is the mean over the last
twentieth of the steps (100 of 2,000); the held-out loss is that of the trained weights under the
same strategy. ``dropped`` is the share of (token, expert) pairs that found no place. The bundled
router balances by its bias alone, so what capacity drops later on is what such a router leaves
uneven within each sequence.

The router starts untrained and sends nearly all tokens to a few experts; its bias, at ten times
DeepSeek-V3's speed for a run this short, evens that out within some hundred steps. sparse-gmm runs
without expert parallelism, on split weights: its exchange plays no part in what it computes, and
would take most of the time.

Each strategy is a process of its own. All compile at once and then train one after the other. Two
runs of the same program differ as well, since sums on a GPU are not always in the same order;
``--repeat`` runs the last strategy a second time, which shows how large that is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_machine import gpu_machine

RESULTS = Path(__file__).parent / "results"
STRATEGIES = ("dense-cf1.25", "dense-cf2", "dense-cf4", "sparse-gmm", "sparse-gmm-deepep")
MEMORY_FRACTION = "0.15"
HELD_OUT = 1 / 20
FINAL = 1 / 20


@dataclasses.dataclass(frozen=True)
class Setting:
    """One size of the comparison: the model, the plan and the training."""

    layers: int = 4
    dense_layers: int = 1
    hidden: int = 512
    heads: int = 8
    head_dim: int = 64
    experts: int = 64
    top_k: int = 4
    moe_ffn: int = 256
    dense_ffn: int = 1024
    compute_dtype: str = "bfloat16"
    expert: int = 2
    sequences: int = 16
    sequence: int = 512
    steps: int = 2000
    learning_rate: float = 1e-3
    bias_speed: float = 1e-2
    held_out_batches: int = 16
    seed: int = 0


SMOKE = Setting(
    layers=2,
    hidden=32,
    heads=2,
    head_dim=16,
    experts=8,
    top_k=2,
    moe_ffn=16,
    dense_ffn=32,
    compute_dtype="float32",
    sequences=4,
    sequence=32,
    steps=3,
    held_out_batches=1,
)


def windows(text: Any, sequences: int, length: int, seed: int) -> Iterator[Any]:
    """Endless batches int32 [sequences, length + 1] at random places of ``text``."""
    import numpy as np

    random = np.random.default_rng(seed)
    window = np.arange(length + 1)
    while True:
        start = random.integers(0, len(text) - length, sequences)
        yield text[start[:, None] + window].astype(np.int32)


def train_here(strategy_name: str, setting: Setting) -> dict[str, Any]:
    """Train with one strategy in this process, on the devices that JAX sees."""
    import jax
    import numpy as np

    from moeprof.model.data import load_text
    from moeprof.model.layout import build_mesh, put_batch
    from moeprof.model.optimizer import OptimizerSettings
    from moeprof.model.train import init_state, make_job, make_step
    from moeprof.specs.parameters import parameter_count
    from moeprof.specs.plan import fill_plan
    from moeprof.specs.remat import Remat
    from moeprof.specs.strategy import parse_strategy

    model = model_of(setting)
    expert = 1 if strategy_name == "sparse-gmm" else setting.expert
    plan = fill_plan(jax.device_count(), fsdp=-1, expert=expert, remat=Remat("none"))
    mesh = build_mesh(plan, model)
    job = make_job(model, plan, parse_strategy(strategy_name), mesh)
    settings = OptimizerSettings(learning_rate=setting.learning_rate, bias_speed=setting.bias_speed)
    state = init_state(job, mesh, seed=setting.seed, settings=settings)
    text = load_text()
    boundary = int(len(text) * (1 - HELD_OUT))
    training = windows(text[:boundary], setting.sequences, setting.sequence, setting.seed)
    losses, received, busiest = [], [], []
    first = put_batch(next(training), mesh)
    step = make_step(job, mesh, settings).lower(state, first).compile()
    loss_of = make_loss(job, mesh).lower(state.weights, state.bias, first).compile()
    sys.stdin.readline()  # the word to begin
    began = time.perf_counter()
    for index in range(setting.steps):
        batch = first if index == 0 else put_batch(next(training), mesh)
        state, report = step(state, batch)
        losses.append(report.loss)
        received.append(report.received_rows)
        busiest.append(report.tokens_per_expert)
        if index % 50 == 49:
            jax.block_until_ready(report.loss)
    losses = np.array(jax.device_get(losses), np.float64)
    elapsed_s = time.perf_counter() - began
    last = max(1, int(setting.steps * FINAL))
    held_out = windows(text[boundary:], setting.sequences, setting.sequence, setting.seed + 1)
    unseen = [
        float(loss_of(state.weights, state.bias, put_batch(next(held_out), mesh)))
        for _ in range(setting.held_out_batches)
    ]
    loads = np.array(jax.device_get(busiest[-last:]), np.float64)
    pairs = setting.sequences * setting.sequence * setting.top_k * model.moe_layers
    rows = np.array([np.sum(r) for r in jax.device_get(received[-last:])], np.float64)
    is_dense = strategy_name.startswith("dense")
    return {
        "final_loss": float(losses[-last:].mean()),
        "held_out_loss": float(np.mean(unseen)),
        "first_loss": float(losses[0]),
        "curve": [round(float(x), 5) for x in losses[:: max(1, setting.steps // 40)]],
        "final_loss_standard_error": float(losses[-last:].std() / last**0.5),
        "dropped": float(1 - rows.mean() / pairs) if is_dense else 0.0,
        "busiest_expert_over_mean": float((loads.max(-1) / loads.mean(-1)).mean()),
        "parameters": parameter_count(model),
        "seconds": elapsed_s,
        "is_finite": bool(np.isfinite(losses).all()),
    }


def model_of(setting: Setting) -> Any:
    """The model: float32 weights, bytes as vocabulary."""
    from moeprof.model.data import VOCAB
    from moeprof.specs.model import GqaSpec, ModelSpec

    return ModelSpec(
        layers=setting.layers,
        dense_layers=setting.dense_layers,
        hidden=setting.hidden,
        heads=setting.heads,
        attention=GqaSpec(kv_heads=setting.heads, head_dim=setting.head_dim),
        experts=setting.experts,
        top_k=setting.top_k,
        moe_ffn=setting.moe_ffn,
        dense_ffn=setting.dense_ffn,
        vocab=VOCAB,
        compute_dtype=setting.compute_dtype,
        weight_dtype="float32",
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


class Training:
    """One strategy's process: it compiles at once and trains when told to."""

    def __init__(self, strategy: str, setting: Setting) -> None:
        """Starts the process."""
        self.strategy = strategy
        sizes = json.dumps(dataclasses.asdict(setting))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--one", strategy, sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_FRACTION, **os.environ},
        )

    def result(self, timeout_s: float) -> dict[str, Any]:
        """Let it train and wait; ``failed`` holds the telling line where it does not end well."""
        try:
            out, problems = self._process.communicate("\n", timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            reason = f"no result within {timeout_s:.0f} s; "
            reason += telling(self._process.communicate()[1])
            return {"strategy": self.strategy, "failed": reason}
        if self._process.returncode == 0:
            return {"strategy": self.strategy, **json.loads(out.splitlines()[-1])}
        return {"strategy": self.strategy, "failed": telling(problems)}

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()


def telling(problems: str) -> str:
    """The line of a process' errors that says most."""
    lines = [line.strip() for line in problems.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "RESOURCE_EXHAUSTED" in line]
    return (named or lines or ["no output"])[-1][:300]


def main() -> None:
    """Train with every strategy, print a table, write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--repeat", action="store_true", help="the last strategy once more")
    parser.add_argument("--limit-s", type=float, default=3600, help="for all strategies together")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, a few steps")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_convergence.json")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(train_here(arguments.one[0], Setting(**json.loads(arguments.one[1])))))
        return
    setting = changed(SMOKE if arguments.smoke else Setting(), arguments.set)
    strategies = list(arguments.strategy or STRATEGIES)
    strategies += strategies[-1:] * arguments.repeat
    ends = time.monotonic() + arguments.limit_s
    rows: list[dict[str, Any]] = []
    head = {"machine": gpu_machine(), "setting": dataclasses.asdict(setting)}
    trainings = [Training(strategy, setting) for strategy in strategies]
    try:
        for training in trainings:
            rows.append(training.result(max(ends - time.monotonic(), 1)))
            print(line(rows[-1]), flush=True)
            arguments.out.write_text(json.dumps({**head, "runs": rows}, indent=1) + "\n")
    finally:
        for training in trainings:
            training.end()


def changed(setting: Setting, changes: list[str]) -> Setting:
    """The setting with ``FIELD=VALUE`` texts applied."""
    values = {}
    for change in changes:
        name, value = change.split("=", 1)
        values[name] = type(getattr(setting, name))(value)
    return dataclasses.replace(setting, **values)


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    name = f"{row['strategy']:<18}"
    if "failed" in row:
        return f"{name} failed: {row['failed'][:100]}"
    return (
        f"{name} final {row['final_loss']:.4f} ± {row['final_loss_standard_error']:.4f}  held out "
        f"{row['held_out_loss']:.4f}  dropped {100 * row['dropped']:5.2f} %  busiest "
        f"{row['busiest_expert_over_mean']:.2f} × mean  {row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
