"""Question: how is a step compiled for GPUs that are not there?

JAX's CUDA plugin compiles for a topology that is only described: no GPU, driver or CUDA library is
looked at. ``JAX_PLATFORMS`` has to be ``cpu`` before JAX is imported, or the plugin looks for them
(jax 0.10 and 0.11; jax-ml/jax issue 23971). What it lays out is read from its dump, since neither
version hands a program's buffers to Python.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from moeprof.kernels.backends import gpu_library
from moeprof.kernels.runtime.ep_groups import TARGETS, planning
from moeprof.projector.compiled import Target
from moeprof.tables.compiled_memory import CompiledMemory, compiled_memory

# (devices of the topology, options) -> (step, its arguments as ShapeDtypeStructs with shardings)
Build = Callable[..., tuple[Callable[..., Any], Sequence[Any]]]
# Kernels are not optimised, as none will run; what is laid out stays the same.
OPTIONS: dict[str, bool | int] = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 10):
    # These refuse to tune without a device ("Expect autotune result cache hit for deviceless
    # compilation"). From 0.11 on it is the other way round: without tuning, "No supported config".
    OPTIONS["xla_gpu_autotune_level"] = 0


class Compiled(NamedTuple):
    """XLA's own totals of one device, and how long the compiler took."""

    memory: CompiledMemory
    seconds: float


def devices_of(target: Target) -> list[jax.Device]:
    """Devices that programs can be compiled for, and nothing else.

    Raises:
        RuntimeError: the plugin of the platform is absent or refuses.
    """
    # Where the GPU library is, its handlers answer what XLA asks; a target takes one handler.
    real = gpu_library.registered_targets() if target.platform == "cuda" else frozenset()
    register_placeholders((name for name in TARGETS if name not in real), target.platform.upper())
    topology = topologies.get_topology_desc(
        platform=target.platform, target_config=target.config, topology=target.topology
    )
    return list(topology.devices)


def compile_step(
    build: Build,
    options: dict[str, Any],
    target: Target,
    dump: Path,
    donate: tuple[int, ...] = (),
    ep_axis: tuple[int, str] = (1, "expert"),
) -> Compiled:
    """Compile what `build` makes and leave the compiler's dump in a folder.

    Args:
        build: called with the topology's devices and `options`.
        options: keyword arguments of `build`.
        target: for which GPUs.
        dump: an empty folder.
        donate: arguments whose memory the results may take, where `build` returns a plain function.
        ep_axis: ranks of an EP group and the mesh axis that they are on.
    """
    devices = devices_of(target)
    with ExitStack() as stack:
        stack.enter_context(planning(*ep_axis))
        step, args = build(devices, **options)
        jitted = step if hasattr(step, "trace") else jax.jit(step, donate_argnums=donate)
        began = time.perf_counter()
        lowered = jitted.trace(*args).lower(lowering_platforms=(target.platform,))
        dumped = {"xla_dump_to": str(dump), "xla_dump_hlo_as_proto": True}
        compiled = lowered.compile(compiler_options={**OPTIONS, **dumped})
        seconds = time.perf_counter() - began
        return Compiled(compiled_memory(compiled.memory_analysis()), seconds)


# Handlers in place of kernels that are not there. XLA's GPU compiler refuses a custom call for
# which no handler is registered. These answer what it asks when it compiles, their API version, and
# fail with a clear error should a program that was compiled so ever be run. Structures and offsets
# are those of xla/ffi/api/c_api.h.

_METADATA = 1  # XLA_FFI_Extension_Metadata
_UNIMPLEMENTED = 12  # XLA_FFI_Error_Code_UNIMPLEMENTED
_FIRST_VERSION = (0, 1)  # jaxlib 0.7 passes no API when it asks for the version: it has this one
_MESSAGE = b"compiled by moeprof to tell its memory: this call has no kernel and cannot be run"


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
    )


class _Version(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
    )


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _ErrorArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class _Api(ctypes.Structure):
    """The head of XLA_FFI_Api: its version, and the first of its functions."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version", _Version),
        ("internal_api", ctypes.c_void_p),
        ("error_create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArgs))),
    )


class _CallFrame(ctypes.Structure):
    """The head of XLA_FFI_CallFrame."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
    )


def _answer(frame: ctypes._Pointer[_CallFrame]) -> int | None:  # called by XLA, on its threads
    call = frame.contents
    extension = call.extension_start
    while extension:
        if extension.contents.type == _METADATA:
            asked = ctypes.cast(extension, ctypes.POINTER(_MetadataExtension)).contents
            major, minor = _FIRST_VERSION
            if call.api:
                major, minor = call.api.contents.version.major, call.api.contents.version.minor
            asked.metadata.contents.version.major = major
            asked.metadata.contents.version.minor = minor
            asked.metadata.contents.traits = 0
            return None
        extension = ctypes.cast(extension.contents.next, ctypes.POINTER(_Extension))
    args = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, _MESSAGE, _UNIMPLEMENTED)
    error: int | None = call.api.contents.error_create(ctypes.byref(args))
    return error


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))(_answer)


def register_placeholders(targets: Iterable[str], platform: str) -> None:
    """Let XLA compile custom calls of these targets in this process, for ``CUDA`` or ``ROCM``."""
    for target in targets:
        capsule = jax.ffi.pycapsule(_HANDLER)  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(target, capsule, platform=platform)
