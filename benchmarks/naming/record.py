"""Record one program of the corpus: as a capture on CPU devices, or compiled for H100 GPUs.

    python record.py cpu|h100 SCRIPT OUT DEVICES

A child process of `captures`. ``JAX_PLATFORMS``, ``XLA_FLAGS`` and ``PYTHONPATH`` come from there.
The script has ``build(devices)``, which returns the step, what makes its arguments, and their
shardings or None; a step takes them and returns new values of the first ones, metrics last.
"""

from __future__ import annotations

import gzip
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from jax.extend.source_info_util import register_exclusion

STEPS = 3
register_exclusion(__file__)  # whoever records a run does not stand in its ops' call chains


def script(path: Path) -> ModuleType:
    """The script as a module of its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


def capture(path: Path, out: Path, devices: int) -> None:
    """Write the profile of `STEPS` steps, after one that compiles."""
    step, make, shardings = script(path).build(jax.devices()[:devices])
    arguments = make() if shardings is None else jax.device_put(make(), shardings)
    jitted = step if hasattr(step, "trace") else jax.jit(step)
    arguments = jax.block_until_ready(_next(jitted, arguments))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                arguments = jax.block_until_ready(_next(jitted, arguments))
        jax.profiler.stop_trace()
        (profile,) = Path(folder).rglob("*.xplane.pb")
        out.write_bytes(gzip.compress(profile.read_bytes(), 6, mtime=0))


def _next(step: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of the next step: the results, metrics left out, and the batch as it was."""
    results = step(*arguments)
    state = results[:-1]
    return (*state, *arguments[len(state) :])


def compile_only(path: Path, out: Path, devices: int) -> None:
    """Write the HloProto that XLA compiles for H100 GPUs that are not there."""
    from jax.sharding import SingleDeviceSharding

    from moeprof.projector.compiled import load_target
    from moeprof.projector.compiled.compiler import devices_of
    from moeprof.specs.hardware import load_hardware

    _pretend_cudnn()
    gpus = devices_of(load_target(load_hardware("h100_sxm"), max(devices, 1)))[:devices]
    step, make, shardings = script(path).build(gpus)
    shapes = jax.eval_shape(make)
    places = SingleDeviceSharding(gpus[0]) if shardings is None else shardings
    arguments = jax.tree.map(
        lambda place, part: jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), part
        ),
        places,
        shapes,
        is_leaf=lambda leaf: isinstance(leaf, jax.sharding.Sharding),
    )
    jitted = step if hasattr(step, "trace") else jax.jit(step)
    lowered = jitted.trace(*arguments).lower(lowering_platforms=("cuda",))
    try:
        data = _program(lowered, {})
    except jax.errors.JaxRuntimeError:  # untuned, Triton finds no tiles for some products
        data = _program(lowered, {"xla_gpu_enable_triton_gemm": False})
    out.write_bytes(gzip.compress(data, 6, mtime=0))


def _pretend_cudnn() -> None:
    """Let attention of cuDNN be lowered: JAX asks the GPU that is not there for its version."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    cudnn.check_cudnn_version = lambda: 91000
    cudnn.check_compute_capability = lambda _capability: True


def _program(lowered: Any, options: dict[str, bool | int | str]) -> bytes:
    """The largest program of the compiler's dump."""
    from moeprof.projector.compiled.compiler import OPTIONS

    with tempfile.TemporaryDirectory() as folder:
        dumped = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        lowered.compile(compiler_options={**OPTIONS, **dumped, **options})
        files = Path(folder).glob("*gpu_after_optimizations.hlo.pb")
        return max(files, key=lambda file: file.stat().st_size).read_bytes()


if __name__ == "__main__":
    kind, source, target, count = sys.argv[1:]
    {"cpu": capture, "h100": compile_only}[kind](Path(source), Path(target), int(count))
