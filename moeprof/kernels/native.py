"""Question: is the native library here, and are its handlers known to JAX?

The library is found with `importlib.resources`, so that wheel, editable and source installs behave
alike; ``MOEPROF_NATIVE_LIBRARY`` names another build (a sanitizer build, say).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
from pathlib import Path

import jax

from moeprof.errors import NativeError

LIBRARY_NAME = "libmoeprof_cpu.so"

# FFI target as it appears in HLO and traces -> exported C++ symbol.
CPU_TARGETS = {
    "moeprof_grouped_gemm": "MoeprofGroupedGemm",
    "moeprof_grouped_gemm_variable_k": "MoeprofGroupedGemmVariableK",
    "moeprof_moe_dispatch_inproc": "MoeprofMoeDispatchInproc",
    "moeprof_moe_cached_dispatch_inproc": "MoeprofMoeCachedDispatchInproc",
    "moeprof_moe_combine_inproc": "MoeprofMoeCombineInproc",
}

# Makes the state that tells custom calls apart; the targets in which ranks meet need it.
CALL_SITE_SYMBOL = "MoeprofCallSite"
CALL_SITE_PREFIX = "moeprof_moe_"


def library_path() -> Path:
    """Where the native library lies, or would lie."""
    override = os.environ.get("MOEPROF_NATIVE_LIBRARY")
    if override:
        return Path(override)
    return Path(str(importlib.resources.files("moeprof") / "native" / LIBRARY_NAME))


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library and register its FFI handlers with JAX, once per process.

    Raises:
        NativeError: the library or OpenBLAS is absent or refuses to load; the text says which.
    """
    _preload_openblas()
    path = library_path()
    if not path.is_file():
        raise NativeError(
            f"native library: expected {path}, found nothing there. moeprof was installed without "
            "a C++ compiler; install one and run `pip install --force-reinstall moeprof` again."
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"native library {path} does not load: {error}") from error
    for target, symbol in CPU_TARGETS.items():
        _register(library, path, target, symbol)
    return library


def _register(library: ctypes.CDLL, path: Path, target: str, symbol: str) -> None:
    try:
        symbols = {"execute": symbol}
        if target.startswith(CALL_SITE_PREFIX):
            symbols["instantiate"] = CALL_SITE_SYMBOL
        stages = {
            stage: jax.ffi.pycapsule(getattr(library, name))  # type: ignore[no-untyped-call]
            for stage, name in symbols.items()
        }
        jax.ffi.register_ffi_target(target, stages, platform="cpu")
    except (AttributeError, jax.errors.JaxRuntimeError) as error:
        raise NativeError(
            f"native library {path}: jax {jax.__version__} does not take {symbol}: {error}. It was "
            "built with other sources or for a newer jax; build it again in this environment."
        ) from error


@functools.cache
def unavailable_reason() -> str | None:
    """Why the native library cannot be used; None where it is loaded and registered."""
    try:
        load()
    except NativeError as error:
        return str(error)
    return None


def _preload_openblas() -> None:
    """Load OpenBLAS by path, so that our library finds it by its soname."""
    try:
        import scipy_openblas32
    except ImportError as error:
        raise NativeError(
            "OpenBLAS: expected the package scipy-openblas32, found none. "
            "Install it with `pip install 'moeprof[jax]'`."
        ) from error
    path = Path(scipy_openblas32.get_lib_dir()) / "libscipy_openblas.so"
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"OpenBLAS {path} does not load: {error}. "
            "Install it again with `pip install --force-reinstall scipy-openblas32`."
        ) from error
