"""What the compiler itself lays out for a training step, on devices that are not there.

`plan.plan` compiles any step for N GPUs on a machine without one, `bundled.compile_bundled` the
bundled model's. The compiler runs in a process of its own (`child`), the only one that imports JAX.

Here: for which GPUs, what the compiler has to know of them, and whether it is installed. Each
``targets/KEY.txtpb`` is XLA's GpuTargetConfigProto (xla/stream_executor/device_description.proto)
of a key of `moeprof.specs.hardware`, with the sources of its numbers.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from moeprof.errors import CompileError, SelectionError
from moeprof.specs.hardware import HardwareSpec

EXPERIMENTAL = ("mi300x", "mi355x")
"""Keys that need AMD's libraries, which no package index has (`require_compiler`)."""
_TARGETS = "targets"


@dataclass(frozen=True)
class Target:
    """A kind of GPU, and how many devices of it a program is for.

    ``topology`` counts slices × hosts × GPUs of a host, as JAX's GPU plugins read it.
    """

    key: str
    platform: str
    config: str
    devices: int
    topology: str


def target_keys() -> tuple[str, ...]:
    """Keys that `load_target` knows."""
    folder = files(__name__) / _TARGETS
    return tuple(
        sorted(f.name.removesuffix(".txtpb") for f in folder.iterdir() if f.name.endswith("txtpb"))
    )


def load_target(hardware: HardwareSpec, devices: int) -> Target:
    """What the compiler has to know to compile for `devices` GPUs, on as many hosts as they fill.

    Raises:
        SelectionError: there is no such target, or no such number of devices.
    """
    if hardware.key not in target_keys():
        raise SelectionError(
            f"compile for {hardware.key}: its compiler cannot be had without the device; there "
            f"are: {', '.join(target_keys())}. The closed form has the others."
        )
    most = hardware.host_devices
    per_host = min(devices, most)
    if devices < 1 or devices % per_host:
        raise SelectionError(
            f"compile for {devices} devices: expected 1 to {most}, or a multiple of the {most} "
            f"GPUs of a host; choose {max(devices // most, 1) * most} or "
            f"{(max(devices, 0) // most + 1) * most}."
        )
    text = (files(__name__) / _TARGETS / f"{hardware.key}.txtpb").read_text(encoding="utf-8")
    platform = "rocm" if hardware.key in EXPERIMENTAL else "cuda"
    return Target(hardware.key, platform, text, devices, f"1x{devices // per_host}x{per_host}")


_FIRST_RELEASE = (0, 7, 2)  # of jax-cuda13-plugin
ROCM_SWITCH = "MOEPROF_EXPERIMENTAL_ROCM_PLAN"
# What the compiler's own library is linked with (jax-rocm7-pjrt, `ldd`).
_ROCM_LIBRARIES = (
    "libamdhip64.so.7",
    "librocblas.so.5",
    "libMIOpen.so.1",
    "librccl.so.1",
    "libhipblaslt.so.1",
    "libhipfft.so.0",
    "libhsa-runtime64.so.1",
    "librocprofiler-sdk.so.1",
    "libamd_smi.so.26",
)


def packages(platform: str, version: str) -> tuple[str, ...]:
    """What to install, without dependencies, beside a jaxlib of `version` to compile for GPUs.

    From jaxlib 0.11 on XLA tries products with NVIDIA's assembler before it lays out memory.
    """
    name = "jax-cuda13" if platform == "cuda" else "jax-rocm7"
    plugin = (f"{name}-plugin=={version}", f"{name}-pjrt=={version}")
    tries_products = platform == "cuda" and _release(version) >= (0, 11)
    return (*plugin, "nvidia-cuda-nvcc", "nvidia-nvvm") if tries_products else plugin


def require_compiler(target: Target) -> None:
    """Check that JAX and its plugin for a target are installed; imports neither.

    Raises:
        CompileError: they are not; the message has the command that installs them.
    """
    if importlib.util.find_spec("jax") is None:
        raise CompileError(
            "compile: expected JAX, found none. Install it with `pip install 'moeprof[jax]'`."
        )
    if target.platform == "rocm":
        _require_rocm(target)
    version = importlib.metadata.version("jaxlib")
    if _release(version) < _FIRST_RELEASE:
        raise CompileError(
            f"compile: expected jaxlib {'.'.join(map(str, _FIRST_RELEASE))} or later, found "
            f"{version}, for which there is no such plugin. Install a later jax."
        )
    wanted = packages(target.platform, version)
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    has_plugin = any(target.platform in plugin.name + plugin.value for plugin in plugins)
    if not has_plugin or (len(wanted) > 2 and not _has_assembler()):
        raise CompileError(
            f"compile for {target.key}: expected JAX's plugin for {target.platform.upper()}"
            f"{' and an assembler' if len(wanted) > 2 else ''}, found none. Install it with "
            f"`pip install --no-deps {' '.join(wanted)}`; no GPU, driver or toolkit is needed."
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _has_assembler() -> bool:
    if shutil.which("ptxas") or Path("/usr/local/cuda/bin/ptxas").exists():
        return True
    try:
        importlib.metadata.version("nvidia-nvvm")
        importlib.metadata.version("nvidia-cuda-nvcc")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _require_rocm(target: Target) -> None:
    absent = [name for name in _ROCM_LIBRARIES if not _loads(name)]
    if os.environ.get(ROCM_SWITCH) == "1" and not absent:
        return
    lacking = f"; of its libraries this machine lacks {', '.join(absent)}" if absent else ""
    raise CompileError(
        f"compile for {target.key}: experimental. AMD's compiler loads with a ROCm installation "
        f"alone{lacking}. Where ROCm 7 and jax-rocm7-plugin are installed, set {ROCM_SWITCH}=1; "
        "elsewhere use the closed form."
    )


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
