"""Question: what does one strategy do in a process of its own, for `ab.py`?

    python benchmarks/gpu/ab_process.py common STRATEGY BATCHES SMOKE
    python benchmarks/gpu/ab_process.py largest STRATEGY PDBS PLANNED_BYTES GUESS POOL_BYTES SMOKE

The first trains at each of BATCHES, JSON pairs of pdbs and data; the second looks for the largest
batch, from a pdbs whose plan is known. Both print a line of JSON per result and use all devices
that JAX sees. SMOKE is 1 for tiny sizes, else 0.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.ab_largest import UNTUNED, plan_bytes, search_here
from gpu.ab_setting import SEQUENCE, SMOKE_SEQUENCE, model_of
from gpu.timing import telling_line

WARM_UP, STEPS = 3, 10
# Where a step takes longer than this, one is warm-up and three are timed; above four times as long
# the second alone is timed.
SLOW_STEP_S = 1.5
LEARNING_RATE = 1e-7


class Trainer:
    """A strategy's job on all devices that JAX sees, and its state."""

    def __init__(self, strategy: str, smoke: bool) -> None:
        """Draws the weights."""
        import jax

        from moeprof.model.layout import build_mesh
        from moeprof.model.train import OptimizerSettings, make_job, make_step
        from moeprof.specs.plan import ParallelPlan
        from moeprof.specs.strategy import parse_strategy

        self.model = model_of(smoke=smoke)
        self.sequence = SMOKE_SEQUENCE if smoke else SEQUENCE
        self._devices = jax.device_count()
        plan = ParallelPlan(expert=self._devices)
        self.mesh = build_mesh(plan, self.model)
        self._job = make_job(self.model, plan, parse_strategy(strategy), self.mesh)
        self._settings = OptimizerSettings(
            learning_rate=LEARNING_RATE, weight_decay=0.0, bias_speed=0.0
        )
        self._step = make_step(self._job, self.mesh, self._settings)
        self.state = state_on_devices(self._job, self.mesh, self._settings)
        self._like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state
        )

    def draw(self) -> None:
        """A fresh state where a step that failed has left none."""
        if self.state is None:
            self.state = state_on_devices(self._job, self.mesh, self._settings)

    def batch(self, data: str, pdbs: int) -> Any:
        """A batch of ``data`` on the mesh."""
        return batch_of(data, pdbs * self._devices, self.sequence, self.model.vocab, self.mesh)

    def compiled(self, batch: Any, options: dict[str, Any] | None = None) -> Any:
        """The executable of a step."""
        return self._step.lower(self._like, batch).compile(compiler_options=options)


def run_here(strategy: str, batches: list[tuple[int, str]], smoke: bool) -> None:
    """Print a line of JSON per (pdbs, data), in this process; ends at the first that fails."""
    trainer = Trainer(strategy, smoke)
    before = peaks()
    compiled: dict[int, Any] = {}
    for pdbs, data in batches:
        case: dict[str, Any] = {"pdbs": pdbs, "data": data}
        try:
            batch = trainer.batch(data, pdbs)
            began = time.perf_counter()
            if pdbs not in compiled:
                compiled = {pdbs: trainer.compiled(batch)}
            case["compile_s"] = round(time.perf_counter() - began, 2)
            trainer.state, measured = timed_steps(
                compiled[pdbs], trainer.state, batch, pdbs * trainer.sequence
            )
            case |= measured
        except Exception as error:  # out of memory is a result; the state is gone with it
            print(json.dumps({**case, "failed": telling_line(error)}), flush=True)
            return
        if compiled[pdbs].memory_analysis() is not None:
            case["planned_bytes"] = plan_bytes(compiled[pdbs])
        case |= {"peak_before_step_bytes": before, "peak_bytes": peaks()}
        print(json.dumps(case), flush=True)


def largest_here(
    strategy: str, common: tuple[int, int], guess: int, pool_bytes: int, smoke: bool
) -> None:
    """Print a line of JSON per attempt at the largest batch, in this process."""
    trainer = Trainer(strategy, smoke)

    def compiled(pdbs: int) -> Any:
        import jax

        shape = (pdbs * trainer.mesh.size, trainer.sequence + 1)
        like = trainer.batch("synthetic", 1)
        return trainer.compiled(
            jax.ShapeDtypeStruct(shape, like.dtype, sharding=like.sharding), UNTUNED
        )

    def run(executable: Any, pdbs: int) -> str | None:
        try:
            trainer.draw()
            batch = trainer.batch("synthetic", pdbs)
            trainer.state, report = executable(trainer.state, batch)
            float(report.loss)
        except Exception as error:
            trainer.state = None
            return telling_line(error)
        return None

    search_here(common, guess, pool_bytes, compiled, run)


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
    from moeprof.model.train import TrainState, adamw, state_specs, weight_shapes
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


def main(kind: str, strategy: str, *options: str) -> None:
    """As the arguments say."""
    if kind == "common":
        batches, smoke = options
        run_here(strategy, [tuple(b) for b in json.loads(batches)], smoke == "1")
        return
    pdbs, planned, guess, pool, smoke_size = map(int, options)
    largest_here(strategy, (pdbs, planned), guess, pool, bool(smoke_size))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main(*sys.argv[1:])
