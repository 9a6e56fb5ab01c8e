"""Question: what would any function of this process take of each of N devices that are not there?

    import moeprof

    found = moeprof.plan(train_step, state, batch, hardware="h100_sxm", mesh={"fsdp": 64})
    print(found)

The function is traced and lowered here, so it may close over anything; another process compiles
it. Nothing is allocated of arguments, and no device is looked at.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprof.errors import SelectionError
from moeprof.projector.any_step.result import StepPlan
from moeprof.projector.compiled import Target, load_target, require_compiler
from moeprof.projector.compiled.plan import Named, lay_out
from moeprof.specs.hardware import load_hardware

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    from moeprof.projector.any_step.exported import Lowered

_BUILD = Named("moeprof.projector.any_step.exported", "build_exported")


def plan(
    step: Callable[..., Any],
    *args: Any,
    hardware: str = "h100_sxm",
    devices: int | None = None,
    mesh: Mesh | AbstractMesh | Mapping[str, int] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    mem_fraction: float | None = None,
    ep_axis: str = "expert",
    timeout_s: float = 900.0,
) -> StepPlan:
    """Compile a function for devices that are not there and say what it takes of each.

    Args:
        step: the function, jitted or not. It may close over arrays, which are constants of its
            program, and use `jax.shard_map`.
        args: its arguments: pytrees of `jax.ShapeDtypeStruct`, with shardings or not, or of arrays,
            of which the shapes alone count. Static ones as they are.
        hardware: a key of ``moeprof hardware``: h100_sxm, h200_sxm or b200.
        devices: how many, 8 to a host; as many as the mesh has where it is left out.
        mesh: a mesh of JAX, abstract or not, or the sizes of its axes by name. Where it is left out
            it is that of the arguments' shardings, else one whose devices all do the same.
        kwargs: arguments that the function is given by name.
        in_shardings: as of `jax.jit`, for a function that is not jitted; a PartitionSpec is over
            the mesh.
        out_shardings: the same of its results.
        donate_argnums: as of `jax.jit`, for a function that is not jitted.
        static_argnums: as of `jax.jit`, for a function that is not jitted.
        mem_fraction: share of the device that XLA may take; 0.93 where it is left out.
        ep_axis: the mesh axis of EP groups, where the function calls `moeprof.kernels`.
        timeout_s: seconds after which the compiler is stopped.

    Returns:
        The plan of one device. The flags of ``XLA_FLAGS`` in this process's environment hold;
        ``compiler_options`` of `jax.jit` do not.

    Raises:
        SelectionError: no such hardware, or the mesh has another number of devices.
        CompileError: the compiler is not installed or fails, the function cannot be lowered, or
            time is up.

    Example:
        >>> x = jax.ShapeDtypeStruct((4096, 8192), jnp.bfloat16)
        >>> found = moeprof.plan(step, x, mesh={"data": 8}, in_shardings=PartitionSpec("data"))
        >>> found.fits, found.peak_range, found.largest_buffers
    """
    _check(step, devices, mem_fraction)
    spec = load_hardware(hardware)
    require_compiler(load_target(spec, 1 if devices is None else devices))
    from moeprof.projector.any_step.exported import jitted, lower
    from moeprof.projector.any_step.mesh import check_devices, mesh_of, sharded

    given = (args, dict(kwargs or {}))
    over = mesh_of(mesh, devices, (given, in_shardings, out_shardings))
    target = load_target(spec, over.size)
    options = {
        "in_shardings": sharded(in_shardings, over),
        "out_shardings": sharded(out_shardings, over),
        "donate_argnums": donate_argnums,
        "static_argnums": static_argnums,
    }
    # kernels of ours lower to custom calls for planned devices, where they can be called at all
    axis = ep_axis if "moeprof.kernels" in sys.modules else None
    lowered = lower(jitted(step, options), *given, over, target.platform, axis)
    check_devices(lowered.axes, devices)
    target = load_target(spec, prod(lowered.axes.values()))
    return plan_lowered(lowered, target, mem_fraction=mem_fraction, timeout_s=timeout_s)


def plan_lowered(
    lowered: Lowered,
    target: Target,
    *,
    mem_fraction: float | None = None,
    timeout_s: float = 900.0,
) -> StepPlan:
    """Compile a program that was lowered for as many devices as a target has.

    Raises:
        CompileError: the compiler fails, or time is up.
    """
    from moeprof.projector.any_step.reading import read_step

    spec = load_hardware(target.key)
    with tempfile.TemporaryDirectory(prefix="moeprof-step-") as folder:
        file = Path(folder) / "program"
        file.write_bytes(lowered.program)
        laid_out = lay_out(
            _BUILD,
            spec,
            target.devices,
            lowered.options(file),
            what=lowered.name,
            timeout_s=timeout_s,
        )
    return read_step(laid_out, lowered, target, mem_fraction)


def _check(step: object, devices: object, mem_fraction: float | None) -> None:
    if not callable(step):
        raise SelectionError(f"plan: expected a function first, found {step!r}.")
    if devices is not None and (not isinstance(devices, int) or isinstance(devices, bool)):
        raise SelectionError(f"plan: expected devices to be a whole number, found {devices!r}.")
    if mem_fraction is not None and not 0 < mem_fraction <= 1:
        raise SelectionError(
            f"plan: expected mem_fraction above 0 and at most 1, found {mem_fraction:g}."
        )
