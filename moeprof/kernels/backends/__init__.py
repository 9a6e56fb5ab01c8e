"""Question: how does a native library come into this process, and its handlers to JAX?

Libraries are found with `importlib.resources`, so that wheel, editable and source installs behave
alike; an environment variable may name another build (a sanitizer build, say).

XLA's GPU compiler (jaxlib 0.11.2) crashes where a custom call takes an array without elements that
is a parameter of the program: it has no memory to point at. A constant of the program is fine.
"""

from __future__ import annotations

import ctypes
import importlib.resources
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from moeprof.errors import NativeError

_Value = Any  # whichever type the installed JAX has for MLIR values


def library_path(name: str, variable: str) -> Path:
    """Where the library ``name`` lies, or would lie; ``variable`` names another build."""
    override = os.environ.get(variable)
    if override:
        return Path(override)
    return Path(str(importlib.resources.files("moeprof") / "native" / name))


def open_library(path: Path, kind: str, variable: str, where_absent: str) -> ctypes.CDLL:
    """The library at ``path``.

    Args:
        path: where it lies, or would lie.
        kind: what it is called in messages, "native library", say.
        variable: the environment's name for another build, which is blamed where it is set.
        where_absent: why it may be missing where the variable is not set, and what to do then.

    Raises:
        NativeError: it is absent or refuses to load.
    """
    is_named = bool(os.environ.get(variable))
    advice = f"{variable} names it: set that to a library that was built, or unset it."
    if not path.is_file():
        found = "no file" if path.exists() else "nothing"
        raise NativeError(
            f"{kind}: expected {path}, found {found} there. {advice if is_named else where_absent}"
        )
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        ending = f". {advice}" if is_named else ""
        raise NativeError(f"{kind} {path} does not load: {error}{ending}") from error


def register(
    library: ctypes.CDLL, path: Path, target: str, stages: Mapping[str, str], platform: str
) -> None:
    """Make a handler of ``library`` known to JAX under ``target``.

    Args:
        library: from `open_library`.
        path: where it lies, for messages.
        target: the name in HLO and traces.
        stages: "execute" and further stages of XLA's FFI, each with its exported symbol.
        platform: "cpu" or "CUDA".

    Raises:
        NativeError: a symbol is missing, or the installed JAX does not take the handler.
    """
    try:
        handlers = {
            stage: jax.ffi.pycapsule(getattr(library, symbol))  # type: ignore[no-untyped-call]
            for stage, symbol in stages.items()
        }
        jax.ffi.register_ffi_target(target, handlers, platform=platform)
    except (AttributeError, jax.errors.JaxRuntimeError) as error:
        raise NativeError(
            f"native library {path}: jax {jax.__version__} does not take {stages['execute']}: "
            f"{error}. It was built with other sources or for a newer jax; build it again in this "
            "environment."
        ) from error


def as_constants(ctx: mlir.LoweringRuleContext, operands: Sequence[_Value]) -> list[_Value]:
    """``operands``, with those that have no elements replaced by constants of their type."""
    avals: Sequence[Any] = ctx.avals_in
    return [
        _constant(ctx, aval) if 0 in aval.shape else operand
        for operand, aval in zip(operands, avals, strict=True)
    ]


def _constant(ctx: Any, aval: Any) -> _Value:
    make = mlir.lower_fun(lambda: jnp.zeros(aval.shape, aval.dtype), multiple_results=False)
    (value,) = make(ctx.replace(avals_in=[], avals_out=[aval]))
    return value
