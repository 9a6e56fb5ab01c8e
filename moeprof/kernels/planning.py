"""Question: how are the native operations compiled for a GPU that is not there?

Inside `planning` they lower for CUDA and ROCm to custom calls of their shapes, which no handler of
ours computes: a program compiled so tells its memory, and nothing can come of running it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from moeprof.kernels.ep_groups import EpGroups

TARGETS = (
    "moeprof_grouped_gemm",
    "moeprof_grouped_gemm_variable_k",
    "moeprof_moe_dispatch",
    "moeprof_moe_cached_dispatch",
    "moeprof_moe_combine",
)
"""Custom calls of planned programs. XLA asks for a handler of each before it compiles one."""

_groups: ContextVar[EpGroups | None] = ContextVar("groups", default=None)


@contextmanager
def planning(ep_size: int, axis_name: str) -> Iterator[None]:
    """Compile for GPUs that are not there, with `ep_size` ranks along a mesh axis.

    `setup` is neither needed nor looked at. What JAX traced inside is forgotten afterwards.
    """
    token = _groups.set(EpGroups((tuple(range(ep_size)),), axis_name))
    try:
        yield
    finally:
        _groups.reset(token)
        jax.clear_caches()  # type: ignore[no-untyped-call]


def planned_groups() -> EpGroups | None:
    """One EP group that stands for all of the planned program; None outside `planning`."""
    return _groups.get()


def is_planning() -> bool:
    """Whether programs are compiled only to be looked at."""
    return _groups.get() is not None
