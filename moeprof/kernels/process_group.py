"""Question: how does this process join its EP group of processes, and how does it leave?

The GPU library keeps the connection: sockets and shared memory between the processes, and each
other's GPU memory mapped. See docs/why/exchange-between-processes.md.
"""

from __future__ import annotations

import atexit
import ctypes

import jax

from moeprof.errors import SpecError
from moeprof.kernels import native_gpu
from moeprof.kernels.ep_groups import local_ordinal
from moeprof.kernels.process_agreement import Agreement

_TEXT_BYTES = 4096


class JoinError(SpecError, RuntimeError):
    """The processes of an EP group do not come together."""


def join(agreement: Agreement, own_group: tuple[int, ...], timeout_ms: int) -> None:
    """Connect with the other processes of the group; all of them must call this.

    Args:
        agreement: what all processes agreed on.
        own_group: process indices in rank order.
        timeout_ms: how long to wait for the others.

    Raises:
        JoinError: (a RuntimeError) a process does not come, or its memory cannot be reached.
        NativeError: there is no GPU library, or it does not load.
    """
    library = native_gpu.load()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    failed = library.MoeprofGpuJoinProcesses(
        agreement.token.encode(),
        (ctypes.c_int64 * len(own_group))(*own_group),
        ctypes.c_int64(len(own_group)),
        ctypes.c_int64(jax.process_index()),
        ctypes.c_int64(local_ordinal(jax.local_devices()[0])),
        ctypes.c_int64(timeout_ms),
        text,
        ctypes.c_int64(_TEXT_BYTES),
    )
    if failed:
        raise JoinError(f"setup(mode='per_process'): {text.value.decode(errors='replace')}")
    # Before the CUDA runtime ends, and with the others' knowledge. One registration counts.
    atexit.unregister(leave)
    atexit.register(leave)


def leave() -> None:
    """Leave the group, if this process is in one. Ends waits of this process first."""
    if native_gpu.is_loaded():
        native_gpu.load().MoeprofGpuLeaveProcesses()
