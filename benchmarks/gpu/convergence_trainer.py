"""Question: what does one strategy on one device lose and drop, from a seed and with a router?

`convergence.py` runs it in a process of its own for every strategy and GPU.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from gpu.convergence_setting import (
    BIAS_SPEED,
    HELD_OUT,
    Setting,
    learning_rate_of,
    model_of,
    whole,
    windows,
)

PART = 1 / 20


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

    def compile(self, routers: list[str]) -> None:
        """Compile everything, by one step from a state that is then forgotten."""
        for router in routers:
            self.train(router, 0, steps=1)

    def train(self, router: str, seed: int, steps: int | None = None) -> dict[str, Any]:
        """Train from ``seed``, for the setting's steps or fewer, and say how it went."""
        import jax
        import numpy as np

        from moeprof.model.layout import put_batch
        from moeprof.model.train import OptimizerSettings, init_state, make_step

        setting, mesh = self._setting, self._mesh
        steps = steps or setting.steps
        settings = OptimizerSettings(
            learning_rate=learning_rate_of(setting), bias_speed=BIAS_SPEED[router]
        )
        state = init_state(self._job, mesh, seed=seed, settings=settings)
        if router not in self._steps:
            self._steps[router] = make_step(self._job, mesh, settings)
        step = self._steps[router]
        batches = windows(self._seen, setting.sequences, setting.sequence, seed)
        began = time.perf_counter()
        reports = []
        for index in range(steps):
            state, report = step(state, put_batch(next(batches), mesh))
            reports.append((report.loss, report.received_rows, report.tokens_per_expert))
            if index % 50 == 49:
                jax.block_until_ready(report.loss)
            if index % 250 == 249:
                seconds = time.perf_counter() - began
                print(f"{router}, seed {seed}: step {index + 1}, {seconds:.1f} s", file=sys.stderr)
        losses, received, loads = (
            np.array(each) for each in zip(*jax.device_get(reports), strict=True)
        )
        seconds = time.perf_counter() - began
        last = max(1, int(steps * PART))
        kept = received.sum(axis=(1, 2, 3)) / loads.sum(axis=(1, 2)) if self._is_dense else None
        return {
            "final_loss": float(losses[-last:].mean()),
            "held_out": self._held_out(self._loss, state, steps),
            "held_out_dropless": self._held_out(self._dropless_loss, state, steps),
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

    def _held_out(self, loss: Callable[..., Any], state: Any, steps: int) -> float:
        import numpy as np

        from moeprof.model.layout import put_batch

        setting = self._setting
        limit = 1 if steps < 10 else None
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

    from moeprof.model.decoder import forward
    from moeprof.model.layers import cross_entropy_sum
    from moeprof.model.layout import BATCH, placements, psum
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
    """Compile; then, for each router and seed that comes in, train and print a line of JSON."""
    began = time.perf_counter()
    trainer = Trainer(strategy, setting)
    trainer.compile(routers)
    print(json.dumps({"ready_s": round(time.perf_counter() - began, 1)}), flush=True)
    for line in sys.stdin:
        router, seed = line.split()
        row = {"router": router, "strategy": strategy, "seed": int(seed)}
        print(json.dumps(row | trainer.train(router, int(seed))), flush=True)
