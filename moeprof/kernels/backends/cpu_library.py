"""Question: is the native CPU library here, and are its handlers known to JAX?

``MOEPROF_NATIVE_LIBRARY`` names another build (a sanitizer build, say).
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from moeprof.errors import NativeError
from moeprof.kernels import backends

LIBRARY_NAME = "libmoeprof_cpu.so"
VARIABLE = "MOEPROF_NATIVE_LIBRARY"

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

_WHERE_ABSENT = (
    "moeprof was installed without a C++ compiler; install one and run "
    "`pip install --force-reinstall .` in its checkout."
)


def library_path() -> Path:
    """Where the native library lies, or would lie."""
    return backends.library_path(LIBRARY_NAME, VARIABLE)


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library and register its FFI handlers with JAX, once per process.

    Raises:
        NativeError: the library or OpenBLAS is absent or refuses to load; the text says which.
    """
    _preload_openblas()
    path = library_path()
    library = backends.open_library(path, "native library", VARIABLE, _WHERE_ABSENT)
    for target, symbol in CPU_TARGETS.items():
        stages = {"execute": symbol}
        if target.startswith(CALL_SITE_PREFIX):
            stages["instantiate"] = CALL_SITE_SYMBOL
        backends.register(library, path, target, stages, "cpu")
    return library


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
