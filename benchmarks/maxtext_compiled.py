"""Question: what memory does XLA plan for MaxText's own training step, without any GPU?

    python benchmarks/maxtext_compiled.py --devices 64 --target FILE.txtpb --out FILE.json \\
        -- model_name=deepseek3-671b per_device_batch_size=1 ici_fsdp_parallelism=8 …

An independent oracle for the world `maxtext` of the closed form: MaxText's train step of the given
options (those of its base.yml), compiled ahead of time for the device of --target, a
GpuTargetConfigProto as text. Needs Python 3.12, maxtext 0.2.5, jax, jax-cuda13-plugin and
jax-cuda13-pjrt in its environment; 0.6 GB of memory and a minute per case. MaxText's attention on
GPUs is Transformer Engine's, which cannot be compiled here: one that recomputes the scores by
blocks of 512 queries stands in for it, so rows of attention are not evidence.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

BLOCK = 512
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


def prepare(devices: int, dump: Path) -> None:
    """Set the environment that MaxText and XLA read when they are imported."""
    flags = (
        "--xla_gpu_autotune_level=0",
        "--xla_gpu_enable_triton_gemm=false",
        f"--xla_force_host_platform_device_count={devices}",
        f"--xla_dump_to={dump}",
        "--xla_dump_hlo_as_proto",
        "--xla_dump_hlo_module_re=.*train_step.*",
    )
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


def compile_step(arguments: list[str], devices: int, target: str) -> Any:
    """XLA's executable of MaxText's training step for ``devices`` devices that are not there."""
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
    with jax.set_mesh(mesh), train_compile.axis_rules(config.logical_axis_rules):
        jitted = jax.jit(
            step,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static,
            donate_argnums=donated,
        )
        return jitted.trace(*given, **named).lower(lowering_platforms=("cuda",)).compile()


def largest_at_peak(dump: Path, most: int = 40) -> list[dict[str, Any]]:
    """The largest buffers alive when the arena is fullest, from the compiler's dump."""
    from moeprof.ingest.hlo.buffer_assignment import parse_buffers
    from moeprof.ingest.hlo.module import parse_module
    from moeprof.ingest.xspace.wire import read_message

    (path,) = dump.glob("*gpu_after_optimizations.hlo.pb")
    data = path.read_bytes()
    parts = read_message(data, 0, len(data)).stretches
    module = parse_module(data, *parts[1])
    ops = {op.name: op for op in module.instructions}
    names = {op.id: op.name for op in module.instructions}
    places: dict[tuple[int, int], Any] = {}
    for buffer in parse_buffers(data, *parts[3], names):
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


def main() -> None:
    """Compile one case; its figures are added to the file of --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("options", nargs="+", help="of MaxText, name=value")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder)
        prepare(arguments.devices, dump)
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


if __name__ == "__main__":
    main()
