"""Question: are our GPU kernels here, and is there a GPU that they run on?

``libmoeprof_gpu.so`` is built where nvcc and a GPU are, or with MOEPROF_GPU=ON where nvcc is, for
GPUs of compute capability 9.0 (NVIDIA Hopper). ``MOEPROF_GPU_LIBRARY`` names another build. Asking
starts no JAX backend: the library itself asks the driver.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from moeprof.errors import NativeError
from moeprof.kernels import backends

LIBRARY_NAME = "libmoeprof_gpu.so"
VARIABLE = "MOEPROF_GPU_LIBRARY"
PLATFORM = "CUDA"

_EXCHANGES = {
    "moeprof_moe_dispatch": "MoeprofGpuMoeDispatch",
    "moeprof_moe_cached_dispatch": "MoeprofGpuMoeCachedDispatch",
    "moeprof_moe_combine": "MoeprofGpuMoeCombine",
}

# FFI target as it appears in HLO and traces -> exported C++ symbol. The names are the CPU's.
GPU_TARGETS = {
    "moeprof_grouped_gemm": "MoeprofGpuGroupedGemm",
    "moeprof_grouped_gemm_variable_k": "MoeprofGpuGroupedGemmVariableK",
    **{f"{target}_inproc": symbol for target, symbol in _EXCHANGES.items()},
    **{f"{target}_per_process": symbol for target, symbol in _EXCHANGES.items()},
}

_WHERE_ABSENT = (
    "It is built where nvcc and an NVIDIA GPU are: put nvcc on PATH and install moeprof again, "
    "with MOEPROF_GPU=ON in the environment where there is no GPU."
)
_TEXT_BYTES = 512


def library_path() -> Path:
    """Where the GPU library lies, or would lie."""
    return backends.library_path(LIBRARY_NAME, VARIABLE)


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library and register its handlers with JAX, once per process. Needs no GPU.

    Raises:
        NativeError: the library is absent, refuses to load or lacks a handler; the text says
            which.
    """
    path = library_path()
    library = backends.open_library(path, "GPU library", VARIABLE, _WHERE_ABSENT)
    for target, symbol in GPU_TARGETS.items():
        backends.register(library, path, target, {"execute": symbol}, PLATFORM)
    return library


def registered_targets() -> frozenset[str]:
    """Targets that have a handler of ours for CUDA in this process; none without the library."""
    try:
        load()
    except NativeError:
        return frozenset()
    return frozenset(GPU_TARGETS)


@functools.cache
def unavailable_reason() -> str | None:
    """Why our GPU kernels cannot run here; None where they can."""
    try:
        library = load()
    except NativeError as error:
        return str(error)
    return _problem_with_gpus(library)


def is_absent() -> bool:
    """Whether there is no library, and none is named in the environment either."""
    return not os.environ.get(VARIABLE) and not library_path().is_file()


def is_loaded() -> bool:
    """Whether `load` has been called and succeeded."""
    return bool(load.cache_info().currsize)


def _problem_with_gpus(library: ctypes.CDLL) -> str | None:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    if library.MoeprofGpuUsable(text, _TEXT_BYTES):
        return None
    return text.value.decode(errors="replace")
