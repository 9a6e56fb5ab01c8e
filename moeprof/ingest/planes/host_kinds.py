"""Question: what does a host do in an event of this name? The one place that decides.

Names are those of JAX's and XLA's own trace events; what matches none is the user's annotation or
bookkeeping of the runtime, which `host_side` tells apart by where it lies.
"""

from __future__ import annotations

import re

from moeprof.tables.host_side import (
    CALLBACK,
    COMPILE,
    EXECUTE,
    INPUT,
    RENDEZVOUS,
    TRANSFER,
    WAIT,
)

_BOOKKEEPING = re.compile(
    r"^(ThreadpoolListener::|ThunkExecutor::|Wait: pending_threads|end: |\$|BUFFER_FLUSH|<UNKNOWN>)"
)
"""Of the thread pool, ends of thunks, Python calls, and the profiler's own doings."""

_KINDS = (
    (
        COMPILE,
        r"backend_compile|::Compile\b|CompileAndLoad|XlaCompile|[Aa]utotun|Run(?:Hlo)?(?:Passes|Backend)"
        r"|trace_to_jaxpr|jaxpr_to_mlir|lower_jaxpr|lower_sharding_computation",
    ),
    (
        CALLBACK,
        r"(?:pure|io|debug|python|host|ffi)_(?:\w+_)?callback|CpuCallback|GpuCallback"
        r"|PyCallback|OutfeedReceiver",
    ),
    (RENDEZVOUS, r"^(?:Invoke)?Rendezvous|^Wait for rendezvous|rendezvous$|^AcquireGpuClique"),
    (WAIT, r"block_until_ready|BlockUntilReady|BlockHostUntil|::Await|^Await|[Ss]ynchronize"),
    (
        TRANSFER,
        r"np\.asarray\(jax\.Array\)|Memcpy(?:D2H|H2D|DtoH|HtoD)|\b[DH]2[DH] |ToLiteral"
        r"|CopyRaw(?:Host|Device)To|BufferFromHost|DevicePut|TransferTo|TransferFrom|CopyToMemorySpace|CopyToDevice"
        r"|^shard_args|shard_arg_fallback|device_get|copy_to_host",
    ),
    (
        INPUT,
        r"(?i:infeed|iterator|next_batch|get_next|load_batch|batch_load|data_?load|input_pipeline"
        r"|\bdata\b|\bgrain\b)",
    ),
    (EXECUTE, r"(?:Executable|LoadedExecutable)(?:::|_)Execute|^PjitFunction\("),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)

_RUNTIME = re.compile(
    r"::|^(?:cu|hip|nccl|rccl)[A-Z]|^PJRT_|^Pjit|^(?:Wait for|Handle|Build|Resolve) "
    r"|^ParseArguments|^Allocate|^Memory(?:All|Deall)ocation|^ComputeSemaphore|^Memcpy|^Memset"
    r"|XLA GPU module$"
)
"""Names of the runtime on a thread of the user's program, which no annotation has."""


def is_bookkeeping(name: str) -> bool:
    """Whether events of this name are never rows."""
    return _BOOKKEEPING.search(name) is not None


def kind_of(name: str) -> str:
    """A kind of `moeprof.tables.host_side`; empty where the name alone does not tell one."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "")


def is_runtime(name: str) -> bool:
    """Whether the name is one that the runtime gives, whatever its kind."""
    return _RUNTIME.search(name) is not None
