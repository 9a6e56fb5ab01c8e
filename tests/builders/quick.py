"""How are a test's programs compiled in a fraction of the time? They may then run slower.

Most of the time of a test of kernels or of the model goes to XLA:CPU. What makes its programs fast
is lost on one that runs once: without optimization it takes half the time, and without an LLVM
module of its own for each fusion half of that again. Instructions and their names differ then: a
test that reads a profile or compiled text of such a program does not see what users get.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax._src import compiler

OPTIONS: tuple[dict[str, Any], ...] = (
    {"xla_backend_optimization_level": 0},
    {"xla_cpu_use_fusion_emitters": False},  # jax 0.10 has it, 0.12 has not
    {"xla_cpu_opt_preset": "CPU_OPT_PRESET_FAST_COMPILE"},  # 0.12 has it
)

_AS_FOR_USERS = compiler.get_compile_options


def compile_quickly(is_wanted: bool) -> None:
    """From now on, or no longer: JAX has compiler options of one `jit`, not of a process.

    No program that was compiled quickly is left to a test that did not ask for it.
    """
    is_quick = compiler.get_compile_options is not _AS_FOR_USERS
    if is_wanted and not is_quick:
        compiler.get_compile_options = functools.partial(_quickly, options())
    elif is_quick and not is_wanted:
        compiler.get_compile_options = _AS_FOR_USERS
        jax.clear_caches()


@functools.cache
def options() -> dict[str, Any]:
    """Those of `OPTIONS` that this jaxlib has; none on GPUs, where the tests are about kernels."""
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for one in OPTIONS if _is_known(one) for name, value in one.items()}


def flags() -> str:
    """The same as XLA_FLAGS of a process."""
    return " ".join(f"--{name}={value}" for name, value in options().items())


def _is_known(option: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x + 1, compiler_options=option).lower(1.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _quickly(quick: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    own = kwargs.pop("env_options_overrides", None)
    return _AS_FOR_USERS(*args, env_options_overrides={**quick, **(own or {})}, **kwargs)
