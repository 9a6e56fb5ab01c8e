"""Question: which one change buys most memory, by the buffers that are known to be there?

What a change saves is taken from the sizes of the buffers that it removes. Where it depends on
what no message tells (how even the routing is, how many ranks share the experts), the size of the
buffers is its upper bound and is called so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from moeprof.analyzers.heap.contents import DENSE_FALLBACK, SAVED, dims_of
from moeprof.projector.oom import (
    ALREADY_FULL,
    COULD_NOT_GROW,
    FRAGMENTED,
    HOST_MEMORY,
    NOT_GROWN,
    NOT_LOADED,
    NOT_RESERVED,
    ON_CHIP,
    OUTSIDE_POOL,
    PINNED,
    TOGETHER_TOO_LARGE,
    Explanation,
)
from moeprof.projector.oom.capacity import Capacity
from moeprof.projector.oom.contents import CAPACITY_EINSUM, of_rows
from moeprof.projector.oom.failures import TORCH

_TILES = 8
_LEAST_SHARE = 0.01
"""Of what is listed: a change that saves less is none."""
_LEAST_SCORES = 1024  # tokens from which on scores [.., S, S] matter
_MOST_FRACTION = 0.95
"""Of the device's memory: what is left is needed by the runtime, collectives and their buffers."""


@dataclass(frozen=True)
class Change:
    """What to change; ``saves_bytes`` None: not known. ``is_upper_bound``: at most that much."""

    name: str
    text: str
    saves_bytes: int | None = None
    is_upper_bound: bool = False


def changes(
    found: Explanation, buffers: pd.DataFrame, capacity: Capacity | None = None
) -> tuple[Change, ...]:
    """Changes that help, what buys most first; `buffers` are `LISTED` rows."""
    if found.verdict in _ELSEWHERE:
        return (_ELSEWHERE[found.verdict],)
    if found.verdict == OUTSIDE_POOL:
        return (_smaller_pool(found, capacity),)
    if found.verdict == HOST_MEMORY:
        return (*_pinned_pool(found), _LESS_ON_HOST)
    if found.verdict == NOT_GROWN:
        return (_FREE_DEVICE, _TAKEN_WHOLE)
    if found.verdict == NOT_LOADED:
        return (_free_first(found), _SMALLER_PROGRAM)
    if found.verdict == FRAGMENTED:
        return (_joined_pieces(found), _free_first(found))
    if found.verdict == ALREADY_FULL:
        return (_free_first(found), *_larger_pool(found, capacity))
    least = _LEAST_SHARE * int(buffers["size_bytes"].sum())
    of_buffers = [change for change in _of_buffers(buffers) if (change.saves_bytes or 0) > least]
    every = [*of_buffers, *_larger_pool(found, capacity)]
    if found.verdict == TOGETHER_TOO_LARGE:
        every.append(_free_first(found))
    return tuple(sorted(every, key=lambda change: -(change.saves_bytes or 0)))


def _free_first(found: Explanation) -> Change:
    how = (
        "torch.cuda.memory._snapshot() lists them with the code that made them"
        if found.who == TORCH
        else "jax.live_arrays() lists them; pass donate_argnums for the state"
    )
    return Change(
        "free what the pool holds",
        "drop arrays that are not needed any more (an old state, a second copy of the weights, "
        f"evaluation outputs): {how}, and run nothing else in this process",
        found.held_bytes,
        is_upper_bound=True,
    )


def _joined_pieces(found: Explanation) -> Change:
    if found.who == TORCH:
        return Change(
            "an allocator that joins pieces",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets PyTorch's segments grow, so "
            "that free pieces join",
        )
    return Change(
        "an allocator that joins pieces",
        "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async lets the driver join free pieces; a larger pool "
        "taken whole at the start (XLA_PYTHON_CLIENT_PREALLOCATE=true) breaks into fewer",
    )


_FREE_DEVICE = Change(
    "free the device",
    "end the other process that holds the device, or lower XLA_PYTHON_CLIENT_MEM_FRACTION",
)
_TAKEN_WHOLE = Change(
    "take the pool at the start",
    "XLA_PYTHON_CLIENT_PREALLOCATE=true (JAX's default) takes it before others can; "
    "what others need beside it must still fit",
)
_LESS_ON_HOST = Change(
    "less on the host",
    "offload fewer tensors to pinned host memory, or give the process more host memory",
)
_SMALLER_PROGRAM = Change(
    "a smaller program",
    "fewer or smaller temporaries (a smaller batch per device, more recomputation), or fewer "
    "programs loaded at once",
)
_ELSEWHERE = {
    NOT_RESERVED: _FREE_DEVICE,
    ON_CHIP: Change(
        "smaller blocks", "choose smaller block sizes for the kernel that the message names"
    ),
}


def _pinned_pool(found: Explanation) -> Iterator[Change]:
    """A larger pool of pinned memory, where it was its limit that ended it."""
    if found.space != PINNED or found.limit_bytes is None or found.state == COULD_NOT_GROW:
        return
    wanted = found.limit_bytes + (found.excess_bytes or found.needed_bytes or 0)
    yield Change(
        "a larger pool of pinned memory",
        f"XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB={-(-wanted // 2**30)} (64 unless it is set), where "
        "the host has that much memory",
        found.excess_bytes,
    )


def _smaller_pool(found: Explanation, capacity: Capacity | None) -> Change:
    """The pool leaves more; the least fraction is named where what the pool held is known."""
    least = ""
    if capacity is not None and found.held_bytes is not None:
        fraction = _rounded_up(found.held_bytes / capacity.device_bytes)
        least = f", not below {fraction:.2f}, which the pool held"
    return Change(
        "a smaller pool",
        f"lower XLA_PYTHON_CLIENT_MEM_FRACTION{least}, until the libraries beside it have room "
        "(NCCL or RCCL take several GiB, DeepEP its buffers); fewer channels (NCCL_MAX_NCHANNELS) "
        "need less",
    )


def _larger_pool(found: Explanation, capacity: Capacity | None) -> Iterator[Change]:
    """A larger fraction, where the device has what is missing and enough remains."""
    if capacity is None or found.excess_bytes is None or found.limit_bytes is None:
        return
    wanted = found.limit_bytes + found.excess_bytes
    fraction = wanted / capacity.device_bytes
    if found.excess_bytes > 0 and fraction <= _MOST_FRACTION:
        yield Change(
            "a larger pool",
            f"XLA_PYTHON_CLIENT_MEM_FRACTION={_rounded_up(fraction):.2f} gives XLA what is "
            "missing; what is left must hold NCCL or RCCL and exchange buffers",
            found.excess_bytes,
        )


def _rounded_up(fraction: float) -> float:
    return -(-fraction * 100 // 1) / 100


def _of_buffers(buffers: pd.DataFrame) -> Iterator[Change]:
    """Changes that remove listed buffers."""
    own = [*_dense_fallback(buffers), *_scores(buffers), *_logits(buffers), *_experts(buffers)]
    yield from own
    saved = int(buffers["size_bytes"][buffers["content"].eq(SAVED)].sum())
    if saved:
        already = buffers["phase"].eq("recompute").any()
        more = (
            "; the program recomputes already, so only a stricter policy helps" if already else ""
        )
        yield Change(
            "recompute more",
            f"remat policy full keeps the input of each layer only{more}",
            saved,
            is_upper_bound=True,
        )
    padding = int(buffers["padding_bytes"].sum())
    if padding:
        yield Change(
            "less padding",
            "dimensions that are multiples of the tile (8 × 128 on TPU) are not padded",
            padding,
        )


def _dense_fallback(buffers: pd.DataFrame) -> Iterator[Change]:
    """Rows repeated for each of G groups: a grouped product holds 1/G of them."""
    dense = buffers[buffers["content"].eq(DENSE_FALLBACK)]
    saves = 0
    for shape, size in zip(dense["shape"], dense["size_bytes"], strict=True):
        dims = dims_of(str(shape))
        groups = dims[0] if len(dims) > 2 else 1
        saves += int(size) - int(size) // max(groups, 1)
    if saves:
        yield Change(
            "a grouped GEMM in place of ragged_dot",
            "the compiler lowered ragged_dot to a dense product that repeats every row for each "
            "expert; a grouped GEMM kernel (strategy sparse-gmm), or a jaxlib that has one for "
            "this device, holds the rows once",
            saves,
        )


def _scores(buffers: pd.DataFrame) -> Iterator[Change]:
    """Attention scores [.., S, S] that are held whole."""
    of_attention = buffers[buffers["component"].eq("attention")]
    sizes = [
        int(size)
        for shape, size in zip(of_attention["shape"], of_attention["size_bytes"], strict=True)
        if (dims := dims_of(str(shape)))[-1:] == dims[-2:-1] and dims[-1:] >= (_LEAST_SCORES,)
    ]
    if sizes:
        yield Change(
            "flash attention",
            "scores of all tokens by all tokens are held whole; blockwise (flash) attention keeps "
            "none of them",
            sum(sizes),
        )


def _logits(buffers: pd.DataFrame) -> Iterator[Change]:
    size = int(buffers["size_bytes"][buffers["content"].eq("logits")].sum())
    if size:
        yield Change(
            "tile the vocabulary",
            f"compute the loss over {_TILES} slices of the vocabulary or of the tokens "
            f"(num_vocab_tiling={_TILES} in MaxText), and keep logits in bfloat16",
            size - size // _TILES,
        )


def _experts(buffers: pd.DataFrame) -> Iterator[Change]:
    """Rows that ranks receive and experts work on, sized for the worst case or by a capacity."""
    rows = buffers[of_rows(buffers)]
    size = int(rows["size_bytes"].sum())
    if not size:
        return
    if rows["op_name"].str.contains(CAPACITY_EINSUM).any():
        yield Change(
            "a smaller capacity factor",
            "rows of the experts grow in proportion to it",
            size,
            is_upper_bound=True,
        )
        return
    yield Change(
        "a limit on received rows",
        "dropless buffers are sized for the worst case, min(ranks, experts / top-k) times an even "
        "routing; ragged_buffer_factor=F sizes them for F times it (rows beyond it are dropped)",
        size,
        is_upper_bound=True,
    )
