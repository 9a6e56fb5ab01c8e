"""Question: whose kernels run here, and why?

Decided in this one place, from what is installed; no JAX backend is started for it.

| name         | when                                                                         |
| ------------ | ---------------------------------------------------------------------------- |
| primus_turbo | the package `primus_turbo`, JAX's ROCm plugin and an AMD GPU are all present |
| native_gpu   | otherwise, where our GPU library loads and JAX may use the GPUs it is for    |
| native_cpu   | otherwise, where our native library loads                                    |
| reference    | otherwise: the slow twins in plain jnp                                       |
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from moeprof.kernels.backends import cpu_library, gpu_library

PRIMUS_TURBO, NATIVE_GPU = "primus_turbo", "native_gpu"
NATIVE_CPU, REFERENCE = "native_cpu", "reference"

# The device node of AMD's kernel driver for compute.
_AMD_GPU_DRIVER = Path("/dev/kfd")


@dataclass(frozen=True)
class ProviderChoice:
    """Whose kernels run, and what speaks against the others.

    Attributes:
        name: "primus_turbo", "native_gpu", "native_cpu" or "reference".
        reason: why this one, in one line.
        native_library: where our native library lies; None where it cannot be used.
        native_problem: why our native library cannot be used; None where it can.
        gpu_library: where our GPU library lies; None where it cannot be used.
        gpu_problem: why our GPU library cannot be used; None where it can.
        primus_turbo_problem: why Primus-Turbo is not used; None where it is.
    """

    name: str
    reason: str
    native_library: Path | None
    native_problem: str | None
    gpu_library: Path | None
    gpu_problem: str | None
    primus_turbo_problem: str | None


def describe() -> ProviderChoice:
    """Say which kernels `moeprof.kernels` exports here, and why. Starts no JAX backend."""
    primus_turbo_problem = _primus_turbo_problem()
    gpu_problem = _gpu_problem()
    native_problem = cpu_library.unavailable_reason()
    name, reason = _choose(primus_turbo_problem, gpu_problem, native_problem)
    return ProviderChoice(
        name=name,
        reason=reason,
        native_library=cpu_library.library_path() if native_problem is None else None,
        native_problem=native_problem,
        gpu_library=gpu_library.library_path() if gpu_problem is None else None,
        gpu_problem=gpu_problem,
        primus_turbo_problem=primus_turbo_problem,
    )


def uses_primus_turbo() -> bool:
    """Whether `moeprof.kernels` exports Primus-Turbo's functions. Loads nothing."""
    return _primus_turbo_problem() is None


def _choose(
    primus_turbo_problem: str | None, gpu_problem: str | None, native_problem: str | None
) -> tuple[str, str]:
    if primus_turbo_problem is None:
        return PRIMUS_TURBO, "primus_turbo.jax is installed and JAX runs on ROCm"
    if gpu_problem is None:
        return NATIVE_GPU, f"the GPU library loads; not Primus-Turbo: {primus_turbo_problem}"
    if native_problem is None:
        return NATIVE_CPU, f"the native library loads; not Primus-Turbo: {primus_turbo_problem}"
    return REFERENCE, f"slow twins in jnp, because: {native_problem}"


def _gpu_problem() -> str | None:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return f"JAX_PLATFORMS={platforms} leaves CUDA out"
    if not _has_plugin("cuda"):
        return "no JAX plugin for CUDA is installed: pip install 'jax[cuda13]'"
    return gpu_library.unavailable_reason()


def _primus_turbo_problem() -> str | None:
    if importlib.util.find_spec("primus_turbo") is None:
        return "the package primus_turbo is not installed"
    if importlib.util.find_spec("primus_turbo.jax") is None:
        return "the installed primus_turbo has no JAX part (primus_turbo.jax)"
    if not _has_plugin("rocm"):
        return "no JAX plugin for ROCm is installed"
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"rocm", "gpu"} & set(platforms.split(",")):
        return f"JAX_PLATFORMS={platforms} leaves ROCm out"
    if not _AMD_GPU_DRIVER.exists():
        return f"no AMD GPU: {_AMD_GPU_DRIVER} does not exist"
    return None


def _has_plugin(platform: str) -> bool:
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return any(platform in plugin.name or platform in plugin.value for plugin in plugins)
