"""Question: what do the programs beside the step take, by XLA's plan for H100s that are not there?

    python benchmarks/memory_phases.py --bundled [--out FILE.jsonl] [--limit N]
    python benchmarks/memory_phases.py --maxtext [--out FILE.jsonl] [--limit N] [--jobs 2]
    python benchmarks/memory_phases.py

The first compiles evaluation (forward pass and loss) and start (the optimizer's state) of the
bundled model for `CASES` of the cases of `memory_grid_cases.py` on at most eight devices; the
second eval_step and the program that makes the state of MaxText 0.2.5, for cases of
`maxtext_grid_cases.py`, as `maxtext_compiled.py` does and where that can be run. Each appends a
JSON line per program and skips what the file has. By the grids' own ``split`` some are for reading
counts of live tensors (``fit``), the others are held out. The third prints how far the closed
form's phases are from all of them. Needs jax with its CUDA plugin, and no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import maxtext_grid_cases
import memory_closed_form
from memory_grid_cases import Case, cases

from moeprof.errors import MoeprofError
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware

RESULT = Path(__file__).parent / "results" / "memory_phases.jsonl"
CASES = 96
MOST_DEVICES = 8
HELD_OUT = ("test", "later")


def build_evaluation(devices: Sequence[Any], **options: Any) -> Any:
    """The mean loss of a batch, and nothing else: what a state is evaluated by."""
    import jax
    from jax.sharding import PartitionSpec

    from moeprof.model.decoder import forward
    from moeprof.model.layers import cross_entropy_sum
    from moeprof.model.layout import BATCH, Job, placements, psum
    from moeprof.model.train import OptimizerSettings, adamw, state_specs
    from moeprof.projector.compiled.bundled import build_bundled
    from moeprof.specs.plan import AXES

    _, (state, batch) = build_bundled(devices, **options)
    model, plan = options["model"], options["plan"]
    mesh = batch.sharding.mesh
    job = Job(model, plan, options["strategy"], devices[0].platform)
    where = placements(model, plan)
    specs = state_specs(job, adamw(OptimizerSettings()))

    def evaluate(weights: Any, bias: Any, tokens: Any) -> Any:
        logits, _ = forward(weights, bias, tokens[:, :-1], where, job)
        count = tokens.shape[0] * (tokens.shape[1] - 1) * plan.devices
        return psum(cross_entropy_sum(logits, tokens[:, 1:]) / count, AXES)

    mapped = jax.shard_map(
        evaluate,
        mesh=mesh,
        in_specs=(specs.weights, specs.bias, BATCH),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    mapped.__name__ = "evaluate"
    return jax.jit(mapped), (state.weights, state.bias, batch)


def build_start(devices: Sequence[Any], **options: Any) -> Any:
    """The optimizer's state of weights that are there, as `moeprof.model.train.init_state`."""
    import jax
    from jax.sharding import NamedSharding

    from moeprof.model.layout import Job
    from moeprof.model.train import OptimizerSettings, adamw, state_specs
    from moeprof.projector.compiled.bundled import build_bundled

    _, (state, batch) = build_bundled(devices, **options)
    job = Job(options["model"], options["plan"], options["strategy"], devices[0].platform)
    optimizer = adamw(OptimizerSettings())
    mesh = batch.sharding.mesh
    specs = state_specs(job, optimizer).optimizer
    laid_out = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return jax.jit(optimizer.init, out_shardings=laid_out), (state.weights,)


BUILDS = {"evaluation": build_evaluation, "start": build_start}


def chosen() -> list[tuple[str, Case]]:
    """Evaluation of every case, start of every eighth."""
    small = [c for c in cases() if c.plan.devices <= MOST_DEVICES][:CASES]
    return [("evaluation", case) for case in small] + [("start", case) for case in small[::8]]


def fill_bundled(out: Path, limit: int | None) -> None:
    """Compile what the file of results lacks of the bundled model."""
    from memory_grid import compiled

    kept = ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes", "buffers", "rest_bytes")
    every = {("bundled", phase, case.key): (phase, case) for phase, case in chosen()[:limit]}
    for phase, case in _missing(out, every):
        head = {"framework": "bundled", "phase": phase, **_head(case, case.split)}
        try:
            found = compiled(case, BUILDS[phase]) if phase == "evaluation" else _started(case)
            line = {**head, **{name: found[name] for name in (*kept, "jax", "s") if name in found}}
        except (RuntimeError, MoeprofError) as error:
            line = {**head, "error": str(error)}
        _append(out, line)


def _started(case: Case) -> dict[str, Any]:
    """Totals alone: no buffer of the program has a life of its own."""
    import jax

    from moeprof.projector.compiled import load_target
    from moeprof.projector.compiled.compiler import compile_step

    target = load_target(load_hardware("h100_sxm"), case.plan.devices)
    with tempfile.TemporaryDirectory() as folder:
        made = compile_step(build_start, case.options, target, Path(folder))
    return {**asdict(made.memory), "jax": jax.__version__, "s": round(made.seconds, 1)}


# MaxText.

_PER_PHASE = {"evaluation": 1, "start": 4}
LIMIT_S = 300


def fill_maxtext(out: Path, limit: int | None, jobs: int) -> None:
    """Compile what the file of results lacks of MaxText's, several at a time."""
    every = {}
    for split, found in maxtext_grid_cases.by_split().items():
        for phase, each in _PER_PHASE.items():
            if split != "wide":
                for case in found[::each]:
                    every["maxtext", phase, case.key] = (phase, case, split)
    with ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(_of_maxtext, _missing(out, every)[:limit]):
            _append(out, line)


def _of_maxtext(asked: tuple[str, Any, str]) -> dict[str, Any]:
    from maxtext_compiled import largest_at_peak

    from moeprof.ingest.dump.open import open_dump
    from moeprof.projector.compiled.result import is_laid_out, totals_of

    phase, case, split = asked
    head = {"framework": "maxtext", "phase": phase, **_head(case, split)}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "stderr.txt").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, __file__, "--lay-out", case.key, phase, name],
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        while not is_laid_out(folder) and process.poll() is None:
            if time.perf_counter() > began + LIMIT_S:
                break
            time.sleep(0.2)
        time.sleep(1)  # the program may still be being written
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        try:
            memory = totals_of(open_dump(folder))
            buffers = largest_at_peak(folder, 24)
        except Exception as error:  # a program that cannot be compiled is a result
            told = (folder / "stderr.txt").read_text("utf-8").strip()[-800:]
            return {**head, "error": f"{type(error).__name__}: {error}: {told}"}
    names = ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes")
    totals = {name: getattr(memory, name) for name in names}
    small = 0.002 * (memory.temp_bytes or 0)
    shown = [
        [b["size_bytes"], b["shape"], b["op_name"]] for b in buffers if b["size_bytes"] > small
    ]
    return {**head, **totals, "buffers": shown, "s": round(time.perf_counter() - began, 1)}


def lay_out(key: str, phase: str, folder: str) -> None:
    """Compile one program of MaxText and leave the compiler's dump in a folder."""
    from maxtext_compiled import lay_out as laid_out

    every = [case for found in maxtext_grid_cases.by_split().values() for case in found]
    case = next(case for case in every if case.key == key)
    laid_out(case, Path(folder), {"evaluation": eval_step, "start": initialize_state}[phase])


def eval_step(
    config: Any, mesh: Any, given: Any, states: Any, model: Any, batch: Any
) -> tuple[Any, ...]:
    """MaxText's evaluation, with how it is laid out and what it is given."""
    from maxtext.trainers.pre_train import train
    from maxtext.utils import maxtext_utils

    made = maxtext_utils.get_functional_eval_with_signature(
        train.eval_step, batch, states, model, config
    )
    return (*made, (given[0], maxtext_utils.get_shaped_batch(config, batch, is_eval=True)))


def initialize_state(
    config: Any, mesh: Any, given: Any, states: Any, model: Any, batch: Any
) -> tuple[Any, ...]:
    """What makes its state, as train_utils and setup_initial_state have it."""
    from flax import nnx
    from maxtext.common import train_state_nnx
    from maxtext.optimizers import optimizers
    from maxtext.utils import maxtext_utils, model_creation_utils

    create, abstract = model_creation_utils.create_nnx_abstract_model(config, mesh)
    rate = maxtext_utils.create_learning_rate_schedule(config)
    optimizer = optimizers.get_optimizer(config, rate, abstract, mesh=mesh)

    def step() -> Any:
        made = create()
        updated = nnx.Optimizer(made, optimizer, wrt=nnx.Param)
        return nnx.state(train_state_nnx.TrainStateNNX(made, updated))

    return step, None, states, (), (), ()


# The file of results.


def _head(case: Any, split: str) -> dict[str, Any]:
    return {"key": case.key, "split": split, "case": asdict(case)}


def _missing(out: Path, every: dict[tuple[str, str, str], Any]) -> list[Any]:
    lines = read(out) if out.exists() else []
    kept = {(line["framework"], line["phase"], line["key"]) for line in lines}
    return [asked for key, asked in every.items() if key not in kept]


def read(path: Path = RESULT) -> list[dict[str, Any]]:
    """The programs that were compiled."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [line for line in lines if "error" not in line]


def _append(out: Path, line: dict[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    told = line.get("temp_bytes", line.get("error"))
    print(line["framework"], line["phase"], line["key"], told, line.get("s"), flush=True)


# The closed form beside them.


@dataclass(frozen=True)
class Score:
    """One evaluation: bytes of its arena as projected and as compiled."""

    framework: str
    split: str
    key: str
    projected: int
    compiled: int

    @property
    def error(self) -> float:
        """Relative, positive where the projection is above."""
        return self.projected / self.compiled - 1


def scores(path: Path = RESULT) -> list[Score]:
    """Every evaluation."""
    return [_score(line) for line in read(path) if line["phase"] == "evaluation"]


def setting_of(line: dict[str, Any]) -> Setting:
    """What a line of the file was compiled for."""
    if line["framework"] == "maxtext":
        return maxtext_grid_cases.Case(**line["case"]).setting
    return memory_closed_form.setting_of(Case(**line["case"]))


def _score(line: dict[str, Any]) -> Score:
    found = next(one for one in project(setting_of(line)).others if one.name == "evaluation")
    size = sum(int(row.size_bytes or 0) for row in found.temp)
    return Score(line["framework"], line["split"], line["key"], size, line["temp_bytes"])


def compare(path: Path) -> None:
    """Print errors by framework and split, and what a start holds beside the state."""
    found = scores(path)
    for group in sorted({(one.framework, one.split) for one in found}):
        errors = [abs(one.error) for one in found if (one.framework, one.split) == group]
        print(
            f"{group[0]:8} evaluation {group[1]:6} {len(errors):3} cases, median "
            f"{statistics.median(errors):.3%}, largest {max(errors):.1%}, "
            f"{sum(error <= 0.1 for error in errors)} within 10 %"
        )
    held = [one for one in found if one.framework == "maxtext" and one.split in HELD_OUT]
    if held:
        errors = [abs(one.error) for one in held]
        print(f"maxtext held out {len(errors)}: {statistics.median(errors):.1%}, {max(errors):.1%}")
    starts = [line["temp_bytes"] for line in read(path) if line["phase"] == "start"]
    print(f"start: {len(starts)} programs, {min(starts):,} to {max(starts):,} B beside the state")


def main() -> None:
    """Compile, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundled", action="store_true")
    parser.add_argument("--maxtext", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--limit", type=int, default=None, help="only the first N programs")
    parser.add_argument("--jobs", type=int, default=2, help="of --maxtext: programs at a time")
    parser.add_argument("--lay-out", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lay_out:
        return lay_out(*options.lay_out)
    if options.bundled:
        return fill_bundled(options.out, options.limit)
    if options.maxtext:
        return fill_maxtext(options.out, options.limit, options.jobs)
    return compare(options.out)


if __name__ == "__main__":
    main()
