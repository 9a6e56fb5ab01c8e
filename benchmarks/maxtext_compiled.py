"""Question: what memory does XLA plan for MaxText's own training step, without any GPU?

    python benchmarks/maxtext_compiled.py --devices 64 --target FILE.txtpb --out FILE.json \\
        -- model_name=deepseek3-671b per_device_batch_size=1 ici_fsdp_parallelism=8 …
    python benchmarks/maxtext_compiled.py --grid [--jobs 8] [--within 480] [--out FILE.jsonl]

An independent oracle for the world `maxtext` of the closed form: MaxText's train step of the given
options, compiled ahead of time for the device of --target, a GpuTargetConfigProto as text. Needs
Python 3.12, maxtext 0.2.5, jax, jax-cuda13-plugin and jax-cuda13-pjrt; 0.6 GB and a minute per
case. MaxText's attention on GPUs is Transformer Engine's, which cannot be compiled here: one that
recomputes scores by blocks of 512 queries stands in for it; rows of attention are not evidence.

--grid compiles the cases of `maxtext_grid_cases.py`, which puts the closed form beside them, for 8
H100 that are not there and appends a JSON line each; what the file has is not compiled again. With
XLA's defaults products are Triton's (``temp_bytes``, the buffers); each is compiled again with
libraries' (``library_temp_bytes``): a run times both and takes the faster. Kernels are not tuned.
Cases with a grouped GEMM have the experts' layer of examples/maxtext_kernels.py, and no plan with
libraries' products (``library_temp_bytes`` null).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

BLOCK = 512
RESULT = Path(__file__).parent / "results" / "maxtext_grid.jsonl"
LIMIT_S, SETTLED_S = 600, 3  # of one case; a program may still be being written on a busy machine
NO_TRITON = "--xla_gpu_enable_triton_gemm=false"
BASE = (
    "override_model_config=true",
    "run_name=compiled",
    "hardware=cpu",
    "dataset_type=synthetic",
    "enable_checkpointing=false",
    "steps=6",
    "attention=dot_product",
    "megablox=False",
    "skip_jax_distributed_system=true",
    "enable_goodput_recording=false",
)


def prepare(devices: int, *flags: str) -> None:
    """Set the environment that MaxText and XLA read when they are imported."""
    flags = (*flags, f"--xla_force_host_platform_device_count={devices}")
    os.environ.update(
        JAX_PLATFORMS="cpu",
        DECOUPLE_GCLOUD="TRUE",
        JOB_INDEX="0",
        JOB_COMPLETION_INDEX="0",
        PROCESSES_IN_JOB="1",
        JAX_PROCESS_COUNT="1",
        JAX_COORDINATOR_ADDRESS="localhost",
        XLA_FLAGS=" ".join((os.environ.get("XLA_FLAGS", ""), *flags)),
    )


def attend_by_blocks() -> None:
    """Replace MaxText's attention by causal attention that holds no [S, S] array."""
    import jax
    import jax.numpy as jnp
    from maxtext.layers import attention_op

    def attend(_self: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        copies = query.shape[2] // key.shape[2]
        key, value = (jnp.repeat(x, copies, axis=2) for x in (key, value))
        batch, sequence, heads, width = query.shape
        blocks = sequence // BLOCK

        @jax.checkpoint
        def one(item: Any) -> Any:
            number, rows = item
            scores = jnp.einsum("bsnd,btnd->bnst", rows, key, preferred_element_type=jnp.float32)
            at = number * BLOCK + jnp.arange(BLOCK)
            scores = jnp.where(at[:, None] >= jnp.arange(sequence), scores, -1e30)
            return jnp.einsum("bnst,btnv->bsnv", jax.nn.softmax(scores).astype(value.dtype), value)

        split = query.reshape(batch, blocks, BLOCK, heads, width).swapaxes(0, 1)
        mixed = jax.lax.map(one, (jnp.arange(blocks), split)).swapaxes(0, 1)
        return mixed.reshape(batch, sequence, heads, value.shape[-1]), None, None

    attention_op.AttentionOp.apply_attention = attend


def compile_step(
    arguments: list[str], devices: int, target: str, options: Any = None, instead: Any = None
) -> Any:
    """XLA's executable for absent devices: MaxText's step, or what ``instead`` makes of it."""
    import jax
    from jax.experimental.topologies import get_topology_desc
    from jax.sharding import AxisType, Mesh
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import maxtext_utils, sharding

    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    base = Path(sys.modules["maxtext"].__path__[0]) / "configs" / "base.yml"
    config = pyconfig.initialize(["maxtext", str(base), *BASE, *arguments])
    hosts, per_host = max(devices // 8, 1), min(devices, 8)
    topology = get_topology_desc(
        platform="cuda", target_config=target, topology=f"1x{hosts}x{per_host}"
    )
    shape = maxtext_utils.create_device_mesh(config, topology.devices)
    mesh = Mesh(shape, config.mesh_axes, axis_types=(AxisType.Auto,) * len(config.mesh_axes))
    given, named, states, _, model = train_compile.get_shaped_inputs(mesh, config)
    params, states = sharding.maybe_update_params_sharding_with_opt(config, states)
    entering = sharding.build_zero1_input_state_mesh_shardings(config, states, params)
    batch = sharding.get_input_data_sharding(config, mesh)
    step, in_shardings, out_shardings, static, donated = (
        maxtext_utils.get_functional_train_with_signature(
            train.train_step, batch, entering, model, config, params
        )
    )
    if instead:
        made = instead(config, mesh, given, states, model, batch)
        step, in_shardings, out_shardings, static, donated, given = made
    with jax.set_mesh(mesh), train_compile.axis_rules(config.logical_axis_rules):
        jitted = jax.jit(
            step,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static,
            donate_argnums=donated,
        )
        lowered = jitted.trace(*given, **named).lower(lowering_platforms=("cuda",))
        return lowered.compile(compiler_options=dict(options or {}))


def _program(dump: Path) -> tuple[dict[str, Any], list[Any]]:
    """Instructions by name and the buffers of the program in the compiler's dump."""
    from moeprof.ingest.hlo.buffer_assignment import parse_buffers
    from moeprof.ingest.hlo.module import parse_module
    from moeprof.ingest.xspace.wire import read_message

    (path,) = dump.glob("*gpu_after_optimizations.hlo.pb")
    data = path.read_bytes()
    parts = read_message(data, 0, len(data)).stretches
    module = parse_module(data, *parts[1])
    names = {op.id: op.name for op in module.instructions}
    buffers = list(parse_buffers(data, *parts[3], names))
    return {op.name: op for op in module.instructions}, buffers


def largest_at_peak(dump: Path, most: int = 40) -> list[dict[str, Any]]:
    """The largest buffers alive when the arena is fullest, from the compiler's dump."""
    ops, buffers = _program(dump)
    places: dict[tuple[int, int], Any] = {}
    for buffer in buffers:
        if buffer.is_at_peak and buffer.kind == "temp":
            place = (buffer.allocation, buffer.offset_bytes)
            if place not in places or places[place].size_bytes < buffer.size_bytes:
                places[place] = buffer
    ordered = sorted(places.values(), key=lambda b: -b.size_bytes)[:most]
    return [
        {
            "size_bytes": b.size_bytes,
            "op": b.op,
            "shape": str(ops[b.op].shape) if b.op in ops else "",
            "op_name": ops[b.op].op_name if b.op in ops else "",
        }
        for b in ordered
    ]


def lay_out(case: Any, folder: Path, instead: Any = None) -> None:
    """Compile a case of the grid and leave the compiler's dump in a folder."""
    from maxtext_grid_cases import HARDWARE

    from moeprof.projector.compiled import load_target
    from moeprof.specs.hardware import load_hardware

    prepare(case.devices, *os.environ.get("XLA_FLAGS", "").split())
    attend_by_blocks()
    target = load_target(load_hardware(HARDWARE), case.devices)
    options = {
        "xla_backend_optimization_level": 0,  # kernels only: what is laid out stays the same
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_proto": True,
    }
    with _kernels(case.expert) if case.has_kernels else contextlib.nullcontext():
        compile_step(case.options, case.devices, target.config, options, instead)


@contextlib.contextmanager
def _kernels(ranks: int) -> Iterator[None]:
    """Experts by `moeprof.kernels`, whose calls are laid out and never run."""
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    import maxtext_kernels

    from moeprof.kernels.runtime.ep_groups import TARGETS, planning
    from moeprof.projector.compiled.compiler import register_placeholders

    maxtext_kernels.install()
    register_placeholders(TARGETS, "CUDA")
    with planning(ranks, maxtext_kernels.AXIS):
        yield


def compiled_case(case: Any, split: str) -> dict[str, Any]:
    """The line of one case."""
    began = time.perf_counter()
    head = {"key": case.key, "split": split, "case": asdict(case)}
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as library:
        folders = {"": Path(own)} | ({} if case.has_kernels else {NO_TRITON: Path(library)})
        running = [_started(case, folder, flag) for flag, folder in folders.items()]
        for process, folder in zip(running, folders.values(), strict=True):
            _until_laid_out(process, folder, began + LIMIT_S)
        try:
            found = _found(*folders.values())
        except Exception as error:  # a case that cannot be compiled is a result
            told = (folders[""] / "stderr.txt").read_text("utf-8").strip()[-1500:]
            return {**head, "error": f"{type(error).__name__}: {error}: {told}"}
    names = ("maxtext", "jax", "jaxlib", "jax-cuda13-plugin")
    return {
        **head,
        **found,
        "versions": {name: version(name) for name in names},
        "date": datetime.date.today().isoformat(),
        "s": round(time.perf_counter() - began, 1),
    }


def _started(case: Any, folder: Path, flag: str) -> subprocess.Popen[bytes]:
    with (folder / "stderr.txt").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, __file__, "--lay-out", case.key, str(folder)],
            stdout=errors,
            stderr=errors,
            env={**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"},
            start_new_session=True,
        )


def _until_laid_out(process: subprocess.Popen[bytes], folder: Path, until: float) -> None:
    from moeprof.projector.compiled.result import is_laid_out

    while not is_laid_out(folder) and process.poll() is None and time.perf_counter() < until:
        time.sleep(0.2)
    time.sleep(SETTLED_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_HELD = ("weights", "optimizer state", "inputs", "results that reuse no argument")


def _found(folder: Path, library: Path | None = None) -> dict[str, Any]:
    """Totals, and what fills the arena: [bytes, count, content, component, phase, shape, name]."""
    from moeprof.analyzers.heap.at_peak import grouped, main_module, peak_of
    from moeprof.ingest.dump.open import open_dump
    from moeprof.projector.compiled.result import has_triton_products, totals_of

    trace = open_dump(folder)
    memory, peak = totals_of(trace), peak_of(trace, main_module(trace))
    if peak is None or memory.temp_bytes is None:
        raise RuntimeError("no buffer has a life")
    ops, _ = _program(folder)
    table = peak.table[~peak.table["content"].isin(_HELD)]
    names = [
        ops[op].op_name.removeprefix("jit(train_step)/") if op in ops else "" for op in table["op"]
    ]
    keys = ["content", "component", "phase", "shape", "op_name"]
    groups = grouped(table.assign(op_name=names), keys)
    shown = groups[groups["bytes"] >= 0.002 * memory.temp_bytes].head(60)
    rows = [
        [int(size), int(count), *said]
        for size, count, *said in shown[["bytes", "buffers", *keys]].itertuples(index=False)
    ]
    return {
        "argument_bytes": memory.argument_bytes,
        "output_bytes": memory.output_bytes,
        "alias_bytes": memory.alias_bytes,
        "temp_bytes": memory.temp_bytes,
        "library_temp_bytes": library and totals_of(open_dump(library)).temp_bytes,
        "has_triton_products": has_triton_products(folder),
        "peak_op": peak.op,
        "peak_op_name": ops[peak.op].op_name if peak.op in ops else "",
        "heap_bytes": [int(heap.live_bytes.max()) for heap in peak.heaps],
        "buffers": rows,
        "rest_bytes": memory.temp_bytes - int(shown["bytes"].sum()),
    }


def fill_grid(out: Path, jobs: int, within_s: float) -> None:
    """Compile what the file of results lacks; none is begun after ``within_s`` seconds."""
    from maxtext_grid_cases import by_split

    every = [case for found in by_split().values() for case in found]
    began, kept = time.perf_counter(), _kept(out, {case.key for case in every})

    def one(case: Any) -> str:
        if time.perf_counter() - began > within_s:
            return ""
        words = [sys.executable, __file__, "--case", case.key]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        failed = {"key": case.key, "error": done.stderr[-1500:]}
        return lines[-1] if lines else json.dumps(failed)

    waiting = [case for case in every if case.key not in kept]
    out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool, out.open("a", encoding="utf-8") as file:
        for done in as_completed([pool.submit(one, case) for case in waiting]):
            if not (line := done.result()):
                continue
            file.write(line + "\n")
            file.flush()
            row = json.loads(line)
            print(row["key"], row.get("s"), row.get("temp_bytes", row.get("error")), flush=True)


def _kept(out: Path, known: set[str]) -> set[str]:
    """Keys that need not be compiled again; what failed, or is no case any more, is taken out."""
    if not out.exists():
        return set()
    lines = {json.loads(line)["key"]: line for line in out.read_text("utf-8").splitlines() if line}
    kept = {k: line for k, line in lines.items() if k in known and '"error":' not in line}
    out.write_text("".join(f"{line}\n" for line in kept.values()), encoding="utf-8")
    return set(kept)


def compile_one(arguments: argparse.Namespace) -> None:
    """Compile the step of the options; its figures are added to the file of --out."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder)
        prepare(
            arguments.devices,
            "--xla_gpu_autotune_level=0",
            NO_TRITON,
            f"--xla_dump_to={dump}",
            "--xla_dump_hlo_as_proto",
            "--xla_dump_hlo_module_re=.*train_step.*",
        )
        attend_by_blocks()
        began = time.perf_counter()
        text = arguments.target.read_text()
        compiled = compile_step(arguments.options, arguments.devices, text)
        stats = compiled.memory_analysis()
        row = {
            "options": arguments.options,
            "devices": arguments.devices,
            "target": arguments.target.stem,
            "versions": {name: version(name) for name in ("maxtext", "jax", "jaxlib")},
            "argument_bytes": stats.argument_size_in_bytes,
            "output_bytes": stats.output_size_in_bytes,
            "alias_bytes": stats.alias_size_in_bytes,
            "temp_bytes": stats.temp_size_in_bytes,
            "seconds": round(time.perf_counter() - began, 1),
            "largest_at_peak": largest_at_peak(dump),
        }
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    arguments.out.write_text(json.dumps([*rows, row], indent=1) + "\n")
    print(f"args {row['argument_bytes']:,} B, temp {row['temp_bytes']:,} B: {arguments.options}")


def main() -> None:
    """Compile one case, or the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--jobs", type=int, default=8, help="of --grid: cases at a time")
    parser.add_argument("--within", type=float, default=1e9, help="of --grid: seconds")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--lay-out", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help="of MaxText, name=value")
    arguments = parser.parse_args()
    if arguments.grid:
        return fill_grid(arguments.out or RESULT, arguments.jobs, arguments.within)
    if arguments.case or arguments.lay_out:
        from maxtext_grid_cases import by_split

        named = {case.key: (case, split) for split, found in by_split().items() for case in found}
        if arguments.lay_out:
            return lay_out(named[arguments.lay_out[0]][0], Path(arguments.lay_out[1]))
        return print(json.dumps(compiled_case(*named[arguments.case])))
    if not (arguments.target and arguments.out and arguments.options):
        parser.error("expected --target, --out and options of MaxText, or --grid")
    return compile_one(arguments)


if __name__ == "__main__":
    main()
