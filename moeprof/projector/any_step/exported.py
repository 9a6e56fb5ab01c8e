"""Question: how does a function of this process become a program that another one can compile?

Here it is lowered for devices that are not there; in the other process, `build_exported` calls it
over them. `jax.export` carries the program. It leaves out what arguments are called and which of
them the caller gives up, so that `Lowered` has these beside it.

What is asked of JAX without a promise that it stays is in this file alone: that `Exported` can be
pickled between two processes of one interpreter, as writing it down needs another package
(flatbuffers); and the names of arguments. Tested with jax 0.7.2, where axes of type Explicit, and
constraints by PartitionSpecs, need `jax.set_mesh` and are refused by JAX; 0.10.2; and 0.12.0.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from moeprof.errors import CompileError, MoeprofError, SelectionError
from moeprof.projector.any_step.mesh import ALONE, mesh_text
from moeprof.projector.compiled.child import reason_of

_CALL = re.compile(r'custom_call @"?([\w.$-]+)')
_NUMBERS = ("donate_argnums", "static_argnums")
_REFUSED = "custom calls whose targets"
_OF_XLA = re.compile(
    r"__|xla\.|Sharding$|SPMD(FullToShard|ShardToFull)Shape$|annotate_device_placement$"
)
"""Targets that the compiler itself takes out of a program."""


@dataclass(frozen=True)
class Argument:
    """One array that a function is given; ``name`` as ``params['w']``.

    ``is_passed``: whether the program takes it; JAX leaves out what is not used. ``is_on_host``:
    whether its sharding asks for the host's memory. ``is_free``: whether it has none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_donated: bool
    is_passed: bool
    is_on_host: bool
    is_float: bool
    is_free: bool


@dataclass(frozen=True)
class Lowered:
    """A program for as many devices as the mesh of ``axes`` has.

    ``types`` has the type of each axis, as JAX names it. ``calls`` are the targets of custom calls
    that need a handler. ``is_placed``: whether the sharding of any argument or result names the
    mesh; else each device is given all of every argument. ``is_wide``: whether types of 64 bits
    are on. ``exchange`` are ranks and mesh axis of the EP groups of `moeprof.kernels`.
    """

    name: str
    program: bytes
    axes: Mapping[str, int]
    types: tuple[str, ...]
    arguments: tuple[Argument, ...]
    calls: tuple[str, ...]
    is_placed: bool
    is_wide: bool
    exchange: tuple[int, str] | None = None

    def options(self, file: Path) -> dict[str, object]:
        """The options of `build_exported`, which reads the program from a file."""
        passed = [place for place, each in enumerate(self.arguments) if each.is_passed]
        return {
            "program": str(file),
            "axes": dict(self.axes),
            "types": list(self.types),
            "passed": passed,
            "donated": [at for at, place in enumerate(passed) if self.arguments[place].is_donated],
            "calls": list(self.calls),
            "is_wide": self.is_wide,
        }


def jitted(step: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """The function as `jax.jit` makes it with these options, None and empty ones left out.

    Raises:
        SelectionError: it is jitted already, and there are options.
        CompileError: JAX refuses the options.
    """
    told = {k: v for k, v in options.items() if not (v is None or (v == () and k in _NUMBERS))}
    if isinstance(step, jax.stages.Wrapped):
        if told:
            raise SelectionError(
                f"plan {getattr(step, '__name__', 'step')}: expected {', '.join(told)} in its own "
                "jax.jit, found them here beside a function that is jitted. Give them there."
            )
        return step
    try:
        return jax.jit(step, **told)
    except Exception as error:
        raise CompileError(f"plan: jax.jit refuses its options: {reason_of(error)}") from error


def lower(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mesh: AbstractMesh,
    platform: str,
    ep_axis: str | None = None,
) -> Lowered:
    """Lower a jitted function for the devices of a mesh, none of which needs to be there.

    Args:
        step: what `jax.jit` returned.
        args: its arguments: shapes, arrays, of which nothing but the shape counts, static values.
        kwargs: those that it is given by name.
        mesh: the devices. One that nobody named (`ALONE`) gives way to that of the function's own
            shardings, where a program has it (from jax 0.10 on).
        platform: ``cuda`` or ``rocm``.
        ep_axis: mesh axis of EP groups, where the function may call `moeprof.kernels`.

    Raises:
        CompileError: the function cannot be traced or lowered.
        SelectionError: its shardings are over another number of devices than the mesh has.
    """
    name = getattr(step, "__name__", "step")
    given = jax.tree.map(lambda leaf: _shape_of(leaf, mesh.size), (tuple(args), dict(kwargs)))
    exchange = None if ep_axis is None else (mesh.shape.get(ep_axis, 1), ep_axis)
    try:
        with _around(mesh, exchange):
            exported, calls = _exported(step, given, platform)
            own = _own_mesh(exported) if ALONE in mesh.axis_names else None
            is_placed = exported.nr_devices > 1
            if not is_placed and mesh.size > 1:
                given = jax.tree.map(lambda leaf: _whole(leaf, mesh), given)
                exported, calls = _exported(step, given, platform)
            arguments = () if own else tuple(_arguments(step, given, exported, mesh))
        if own is not None:
            return lower(step, args, kwargs, own, platform, ep_axis)
        program = _pickled(_flat(exported))
    except MoeprofError:
        raise
    except Exception as error:  # of the user's function, or of JAX about it
        raise CompileError(f"plan {name}: {_explained(reason_of(error), mesh)}") from error
    if exported.nr_devices != mesh.size:
        raise SelectionError(
            f"plan {name}: expected shardings over the mesh {mesh_text(mesh.shape)}, found "
            f"{'no array' if not arguments else f'{exported.nr_devices} devices'}. Give the mesh "
            "that they are over, as mesh={'data': 8}, and at least one array."
        )
    is_wide = bool(getattr(jax.config, "jax_enable_x64", False))
    types = tuple(each.name for each in mesh.axis_types)
    axes = dict(mesh.shape)
    return Lowered(name, program, axes, types, arguments, calls, is_placed, is_wide, exchange)


def _own_mesh(exported: jax.export.Exported) -> AbstractMesh | None:
    """The mesh of the program's own shardings, if it has any and says it."""
    both = ("_in_named_shardings", "_out_named_shardings")
    found = [each.mesh for name in both for each in getattr(exported, name, ()) if each]
    over = [each for each in found if each.size == exported.nr_devices > 1]
    own: AbstractMesh | None = over[0].abstract_mesh if over else None
    return None if own is None or ALONE in own.axis_names else own


def _explained(reason: str, mesh: AbstractMesh) -> str:
    """What to do, where JAX says little: about calls back to Python, or two meshes."""
    if "different from the lowering platform" in reason:
        return (
            "expected a step that runs on devices alone, found one that calls back to this process "
            "(jax.debug.print, jax.debug.callback, io_callback or pure_callback). Plan it without."
        )
    if "require devices to be present" in reason:
        return (
            "expected a step that can be lowered without its devices, found one that cannot, as "
            "with custom_partitioning. Compile it by moeprof.projector.compiled.plan.plan, whose "
            "builder is given devices."
        )
    if "requires a non-empty mesh in context" in reason:  # jax 0.10
        return (
            "expected shardings over a mesh, found PartitionSpecs in the function's own jit. Give "
            f"NamedSharding(jax.sharding.AbstractMesh({tuple(mesh.shape.values())}, "
            f"{mesh.axis_names}), …) there, or the function unjitted and in_shardings here."
        )
    if "does not match the mesh used for export" in reason:
        return (
            f"expected shardings over the mesh {mesh_text(mesh.shape)}, found others: {reason} "
            "Give the mesh that they are over."
        )
    return reason


@contextmanager
def _around(mesh: AbstractMesh, exchange: tuple[int, str] | None) -> Iterator[None]:
    """The mesh for those who name its axes alone, and the kernels of GPUs that are not there."""
    with ExitStack() as stack:
        if exchange is not None:
            from moeprof.kernels.runtime.ep_groups import planning

            stack.enter_context(planning(*exchange))
        stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        yield


def _shape_of(leaf: Any, devices: int) -> Any:
    """The shape of an array, laid out as it is if that is over as many devices."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    is_over = isinstance(sharding, NamedSharding) and sharding.mesh.size == devices
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding if is_over else None)  # type: ignore[no-untyped-call]


def _whole(leaf: Any, mesh: AbstractMesh) -> Any:
    """An array of which every device has all; what is no array stays what it is."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    sharding = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def _exported(step: Any, given: Any, platform: str) -> tuple[jax.export.Exported, tuple[str, ...]]:
    """The program, and the targets that JAX gives no promise for and has to be told to let by."""
    args, kwargs = given
    try:
        return jax.export.export(step, platforms=(platform,))(*args, **kwargs), ()
    except ValueError as error:
        if _REFUSED not in str(error):
            raise
    lowered = step.trace(*args, **kwargs).lower(lowering_platforms=(platform,))
    targets = sorted(set(_CALL.findall(lowered.as_text())))
    checks = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
    export = jax.export.export(step, platforms=(platform,), disabled_checks=checks)
    calls = tuple(target for target in targets if not _OF_XLA.match(target))
    return export(*args, **kwargs), calls


def _arguments(
    step: Any, given: Any, exported: jax.export.Exported, mesh: AbstractMesh
) -> Iterator[Argument]:
    args, kwargs = given
    is_over = exported.nr_devices == mesh.size > 1
    # refuses shardings over a mesh of other axes
    shardings = exported.in_shardings_jax(mesh) if is_over else [mesh] * len(exported.in_avals)
    traced = step.trace(*args, **kwargs)
    infos = jax.tree_util.tree_flatten_with_path(traced.args_info)[0]
    named = getattr(getattr(traced.jaxpr, "jaxpr", None), "debug_info", None)
    names = getattr(named, "arg_names", ()) or ()
    if len(names) != len(infos):
        names = (None,) * len(infos)
    kept = frozenset(exported.module_kept_var_idx)
    for place, ((path, info), name) in enumerate(zip(infos, names, strict=True)):
        yield Argument(
            str(name or f"args{jax.tree_util.keystr(path)}"),
            tuple(info.shape),
            str(info.dtype),
            bool(info.donated),
            place in kept or not _has_zeros(info.dtype),
            "host" in str(getattr(exported.in_avals[place], "memory_space", "")).lower(),
            bool(jnp.issubdtype(info.dtype, jnp.floating)),
            len(info.shape) > 0 and shardings[place] is None,
        )


def _has_zeros(dtype: Any) -> bool:
    """Whether an array of zeros can stand for one that is not used: not for keys."""
    return not jnp.issubdtype(dtype, jax.dtypes.extended)


def _flat(exported: jax.export.Exported) -> jax.export.Exported:
    """The program of flat lists: classes of the user's trees need not be known elsewhere."""
    inputs = jax.tree.structure((tuple(range(len(exported.in_avals))), {}))
    outputs = jax.tree.structure(tuple(range(len(exported.out_avals))))
    changes: dict[str, Any] = {"in_tree": inputs, "out_tree": outputs, "_get_vjp": None}
    return dataclasses.replace(exported, **changes)


class _Pickler(pickle.Pickler):
    """Knows the one class of older versions (0.7) that pickle does not."""

    def reducer_override(self, found: Any) -> Any:
        """How to make it again: from the message that it can be written as."""
        if type(found).__name__ == "HloSharding":
            return _from_message, (type(found), found.to_proto())
        return NotImplemented


def _from_message(kind: Any, message: Any) -> Any:
    return kind.from_proto(message)


def _pickled(exported: jax.export.Exported) -> bytes:
    data = io.BytesIO()
    _Pickler(data).dump(exported)
    return data.getvalue()


# In the process that compiles.


def build_exported(
    devices: Sequence[jax.Device],
    *,
    program: str,
    axes: Mapping[str, int],
    types: Sequence[str],
    passed: Sequence[int],
    donated: Sequence[int],
    calls: Sequence[str],
    is_wide: bool,
) -> tuple[Callable[..., Any], list[Any]]:
    """The step that `Lowered` keeps and its arguments, over devices that are not there."""
    jax.config.update("jax_enable_x64", is_wide)  # type: ignore[no-untyped-call]
    _register(calls, devices[0].platform)
    exported: jax.export.Exported = pickle.loads(Path(program).read_bytes())
    kinds = tuple(AxisType[name] for name in types)
    mesh = Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes), axis_types=kinds)
    whole = NamedSharding(mesh, PartitionSpec()) if mesh.size == 1 else None  # type: ignore[no-untyped-call]
    inputs = [found or whole for found in exported.in_shardings_jax(mesh)]
    outputs = [found or whole for found in exported.out_shardings_jax(mesh)]
    is_free = not any(inputs)

    def step(*given: Any) -> Any:
        values = dict(zip(passed, given, strict=True))
        if is_free and passed:  # something has to name the devices
            values[passed[0]] = _over(values[passed[0]], mesh)
        every = (
            values[place] if place in values else jnp.zeros(aval.shape, aval.dtype)
            for place, aval in enumerate(exported.in_avals)
        )
        results = exported.call(*every)  # type: ignore[no-untyped-call]
        if is_free and not passed:
            results = (_over(results[0], mesh), *results[1:])
        return results

    step.__name__ = exported.fun_name
    shapes = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)  # type: ignore[no-untyped-call]
        for aval, sharding in zip(exported.in_avals, inputs, strict=True)
    ]
    jitted = jax.jit(step, donate_argnums=tuple(donated), out_shardings=tuple(outputs))
    return jitted, [shapes[place] for place in passed]


def _over(value: Any, mesh: Mesh) -> Any:
    """The value on the mesh, split as the compiler likes."""
    free = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * value.ndim)  # type: ignore[no-untyped-call]
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, free))  # type: ignore[no-untyped-call]


def _register(calls: Iterable[str], platform: str) -> None:
    """Placeholders for the custom calls that no plugin has a handler of."""
    from moeprof.projector.compiled.compiler import register_placeholders

    name = {"gpu": "CUDA", "cuda": "CUDA", "rocm": "ROCM"}.get(platform, platform.upper())
    for call in calls:
        try:
            register_placeholders([call], name)
        except Exception:  # it has a handler: JAX's own, or one of moeprof's
            continue
