"""Train a small DeepSeek-style model on the Python standard library's own source text.

    python examples/train_moe.py --strategy sparse-gmm --expert 8 --steps 30
    moeprof capture examples/train_moe.py --strategy sparse-gmm-deepep --expert 4 --fsdp 2

On a machine without an accelerator the devices are virtual, ``expert × fsdp`` of them (8 where one
of the two is -1).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--strategy",
        default="sparse-gmm",
        help="dense-cfX, sparse-ragged-dot, sparse-gmm or sparse-gmm-deepep (default: %(default)s)",
    )
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--expert", type=int, default=8, help="expert parallelism; -1: the rest")
    parser.add_argument("--fsdp", type=int, default=1, help="weight sharding; -1: the rest")
    parser.add_argument("--devices", type=positive, help="virtual devices, on CPU only")
    parser.add_argument("--preset", default="small", help="model to start from")
    parser.add_argument("--attention", choices=("mla", "gqa"), help="default: the preset's")
    for size in ("layers", "dense-layers", "hidden", "experts", "top-k", "moe-ffn"):
        parser.add_argument(f"--{size}", type=int, help="default: the preset's")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: the preset's")
    parser.add_argument("--seq", type=positive, default=64, help="tokens per sequence")
    parser.add_argument("--pdbs", type=positive, default=2, help="sequences per device")
    parser.add_argument("--remat", default="full", help="none, full or save:NAME,…")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print-every", type=positive, default=5, help="steps between two lines")
    arguments = parser.parse_args()
    if arguments.devices is None:
        is_whole_plan = arguments.expert > 0 and arguments.fsdp > 0
        arguments.devices = arguments.expert * arguments.fsdp if is_whole_plan else 8
    return arguments


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {text}")
    return number


def use_virtual_devices(devices: int) -> None:
    """Ask for that many CPU devices; only works before JAX is imported, accelerators ignore it."""
    flag = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={devices}".strip()


def train(arguments: argparse.Namespace) -> None:
    import jax

    import moeprof.routing
    from moeprof.model.data import batches
    from moeprof.model.layout import build_mesh, put_batch
    from moeprof.model.train import OptimizerSettings, init_state, make_job, make_step
    from moeprof.specs.parameters import parameter_count
    from moeprof.specs.plan import fill_plan
    from moeprof.specs.remat import Remat
    from moeprof.specs.strategy import parse_strategy

    model = choose_model(arguments)
    plan = fill_plan(
        jax.device_count(),
        fsdp=arguments.fsdp,
        expert=arguments.expert,
        remat=Remat(arguments.remat),
    )
    strategy = parse_strategy(arguments.strategy)
    mesh = build_mesh(plan, model)
    settings = OptimizerSettings(learning_rate=arguments.learning_rate)
    job = make_job(model, plan, strategy, mesh)
    state = init_state(job, mesh, seed=arguments.seed, settings=settings)
    step = make_step(job, mesh, settings)
    print(
        f"{strategy.name} on expert {plan.expert} × fsdp {plan.fsdp}, {plan.devices} devices, "
        f"{parameter_count(model) / 1e6:.1f} M parameters"
    )

    text = batches(arguments.pdbs * plan.devices, arguments.seq, seed=arguments.seed)
    speed = SpeedMeter(arguments.pdbs * plan.devices * arguments.seq)
    for i in range(arguments.steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            state, report = step(state, put_batch(next(text), mesh))
            moeprof.routing.record(
                i,
                report.tokens_per_expert,
                received_rows=report.received_rows,
                first_layer=model.dense_layers,
            )
        if i % arguments.print_every == 0 or i == arguments.steps - 1:
            loss = float(report.loss)
            print(f"step {i:4d}  loss {loss:.4f}  {speed.read(i)}", flush=True)


def choose_model(arguments: argparse.Namespace):
    from moeprof.specs.presets import load_preset

    changes = {
        name: getattr(arguments, name)
        for name in ("layers", "dense_layers", "hidden", "experts", "top_k", "moe_ffn")
        if getattr(arguments, name) is not None
    }
    if arguments.dtype:
        changes |= {"compute_dtype": arguments.dtype, "weight_dtype": arguments.dtype}
    return dataclasses.replace(load_preset(arguments.preset, arguments.attention), **changes)


class SpeedMeter:
    """Tokens per second since the last reading; the first reading holds compilation, so says so."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._last = (-1, time.perf_counter())

    def read(self, step: int) -> str:
        last_step, last_s = self._last
        now_s = time.perf_counter()
        self._last = (step, now_s)
        if last_step < 0:
            return f"first step with compilation {now_s - last_s:.1f} s"
        tokens = (step - last_step) * self._tokens_per_step
        return f"{tokens / (now_s - last_s):,.0f} tokens/s"


def main() -> None:
    arguments = parse_arguments()
    use_virtual_devices(arguments.devices)
    from moeprof.errors import MoeprofError

    try:
        train(arguments)
    except MoeprofError as error:
        print(f"train_moe: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
