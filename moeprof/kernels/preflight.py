"""Question: can these arguments be dispatched or combined at all?

Everything is answered on the host from shapes and dtypes, before any device call. A message names
the value, the rule it breaks and the nearest valid choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from moeprof.errors import SpecError

# The transport gives each slot of a token one lane of a 32-lane group.
MAX_TOP_K = 32
# Counters for the experts of one rank live in a host-mapped page of 1,024 entries.
MAX_EXPERTS_PER_RANK = 1024
# Rows move in 16-byte words.
ROW_ALIGNMENT_BYTES = 16
# Tokens and rows are counted in int32.
MAX_ROWS = 2**31 - 1
# OpenBLAS, and the kernels' own counters, take 32-bit sizes.
MAX_SIDE = 2**31 - 1
# One scale per 128 channels of an fp8 row.
FP8_CHANNELS_PER_SCALE = 128

FLOAT_DTYPES = ("bfloat16", "float16", "float32")
FP8_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz")


class PreflightError(SpecError, ValueError, AssertionError, TypeError):
    """Arguments that no kernel could take.

    Primus-Turbo raises ValueError for some of these and AssertionError for others, NumPy and JAX
    TypeError for a wrong dtype; code that catches any of them keeps working.
    """


def check_side(op: str, name: str, side: int) -> None:
    """Refuse a side of a grouped product that 32-bit sizes cannot name.

    Raises:
        PreflightError: ``side`` exceeds 2^31 - 1.
    """
    if side > MAX_SIDE:
        raise PreflightError(f"{op}: expected {name} of at most {MAX_SIDE}, found {side}.")


def check_rows(name: str, rows: jax.Array, dtypes: Sequence[str] = FLOAT_DTYPES) -> None:
    """Refuse rows whose rank, dtype or width cannot be moved.

    Args:
        name: what the caller calls the array.
        rows: [rows, hidden].
        dtypes: the dtypes that are taken.

    Raises:
        PreflightError: ``rows`` is not 2-D, has another dtype, or its rows are no multiple of 16 B.
    """
    if rows.ndim != 2:
        raise PreflightError(
            f"{name}: expected 2 dimensions [tokens, hidden], found shape {rows.shape}. "
            f"Reshape it to (-1, {rows.shape[-1] if rows.ndim else 1})."
        )
    if rows.dtype.name not in dtypes:
        raise PreflightError(f"{name}: expected dtype {' or '.join(dtypes)}, found {rows.dtype}.")
    row_bytes = rows.shape[1] * rows.dtype.itemsize
    if row_bytes == 0 or row_bytes % ROW_ALIGNMENT_BYTES:
        raise PreflightError(
            f"{name}: expected rows of a multiple of {ROW_ALIGNMENT_BYTES} bytes, found hidden "
            f"{rows.shape[1]} × {rows.dtype.itemsize} B = {row_bytes} B. "
            f"Nearest valid hidden: {_nearest_hidden(rows.shape[1], rows.dtype.itemsize)}."
        )


def _nearest_hidden(hidden: int, itemsize: int) -> str:
    step = ROW_ALIGNMENT_BYTES // itemsize
    below = hidden // step * step
    return f"{below} or {below + step}" if below else str(step)


def check_scales(x: jax.Array, scales: jax.Array) -> None:
    """Refuse fp8 scales that are not one float32 per 128 channels.

    Raises:
        PreflightError: the shape or dtype differs.
    """
    expected = (x.shape[0], -(-x.shape[1] // FP8_CHANNELS_PER_SCALE))
    if x.shape[1] % FP8_CHANNELS_PER_SCALE or scales.shape != expected:
        raise PreflightError(
            f"x as (values, scales): expected a hidden width that is a multiple of "
            f"{FP8_CHANNELS_PER_SCALE} and scales of shape {expected}, found values {x.shape} and "
            f"scales {scales.shape}."
        )
    if scales.dtype != np.float32:
        raise PreflightError(
            f"x as (values, scales): expected float32 scales, found {scales.dtype}."
        )


def check_routing(tokens: int, topk_idx: jax.Array, topk_weights: jax.Array) -> None:
    """Refuse routing that does not fit the tokens.

    Args:
        tokens: rows of ``x``.
        topk_idx: int32 [tokens, top_k], -1 for an unused slot.
        topk_weights: float32 [tokens, top_k].

    Raises:
        PreflightError: shape, dtype or top-k is out of bounds.
    """
    if topk_idx.ndim != 2 or topk_idx.shape[0] != tokens:
        raise PreflightError(
            f"topk_idx: expected shape [tokens, top_k] with {tokens} tokens as x, "
            f"found {topk_idx.shape}."
        )
    top_k = topk_idx.shape[1]
    if not 1 <= top_k <= MAX_TOP_K:
        raise PreflightError(
            f"topk_idx: expected a top-k from 1 to {MAX_TOP_K}, found {top_k}. "
            f"Nearest valid choice: {min(max(top_k, 1), MAX_TOP_K)}."
        )
    if topk_idx.dtype != np.int32:
        raise PreflightError(
            f"topk_idx: expected dtype int32, found {topk_idx.dtype}. "
            "Cast it with topk_idx.astype(jnp.int32)."
        )
    if topk_weights.shape != topk_idx.shape or topk_weights.dtype != np.float32:
        raise PreflightError(
            f"topk_weights: expected float32 of shape {topk_idx.shape} as topk_idx, "
            f"found {topk_weights.dtype} of shape {topk_weights.shape}."
        )


def check_experts(num_experts: int, ep_size: int) -> None:
    """Refuse a number of experts that the ranks cannot share evenly.

    Raises:
        PreflightError: not a positive multiple of ``ep_size``, or too many per rank.
    """
    if num_experts <= 0 or num_experts % ep_size:
        below = num_experts // ep_size * ep_size
        choices = f"{below} or {below + ep_size}" if below > 0 else str(ep_size)
        raise PreflightError(
            f"num_experts: expected a positive multiple of the EP size {ep_size}, "
            f"found {num_experts}. Nearest valid choice: {choices}."
        )
    if num_experts // ep_size > MAX_EXPERTS_PER_RANK:
        raise PreflightError(
            f"num_experts: expected at most {MAX_EXPERTS_PER_RANK} experts per rank, found "
            f"{num_experts} / {ep_size} = {num_experts // ep_size}. "
            f"Nearest valid choice: {MAX_EXPERTS_PER_RANK * ep_size}."
        )


def check_tokens(tokens: int, ep_size: int) -> None:
    """Refuse a worst case that int32 row numbers cannot count, or no token at all.

    Raises:
        PreflightError: ``tokens`` is 0, or ``tokens × ep_size`` exceeds 2^31 - 1.
    """
    if not 1 <= tokens <= MAX_ROWS // ep_size:
        raise PreflightError(
            f"x: expected 1 to {MAX_ROWS // ep_size} tokens per rank (int32 rows, EP {ep_size}), "
            f"found {tokens}."
        )


def check_expert_alignment(expert_alignment: int) -> None:
    """Refuse an alignment below one row.

    Raises:
        PreflightError: ``expert_alignment`` is not positive.
    """
    if expert_alignment < 1:
        raise PreflightError(
            f"expert_alignment: expected at least 1, found {expert_alignment}. "
            "Nearest valid choice: 1."
        )


def check_handle(handle: Sequence[jax.Array], rows: int, ep_size: int) -> None:
    """Refuse a handle that does not belong to rows of this shape.

    Args:
        handle: the six arrays that `moe_dispatch` returned.
        rows: leading dimension of the rows to combine.
        ep_size: ranks of the group.

    Raises:
        PreflightError: wrong length, or shapes that do not fit each other.
    """
    if len(handle) != 6:
        raise PreflightError(
            f"handle: expected the 6 arrays that moe_dispatch returned, found {len(handle)}."
        )
    tokens = handle[5].shape[0] if handle[5].ndim else 0
    channels = handle[1].shape[-1] if handle[1].ndim else 0
    expected = [
        (ep_size, ep_size),
        (ep_size, channels),
        (ep_size, channels),
        (tokens * ep_size,),
        (tokens, ep_size),
        (tokens, ep_size),
    ]
    found = [array.shape for array in handle]
    if found != expected:
        raise PreflightError(
            f"handle: expected shapes {expected} for EP {ep_size} and {tokens} tokens, "
            f"found {found}. Pass the handle of the dispatch that made these rows."
        )
    dtypes = [array.dtype.name for array in handle]
    if dtypes != ["int32", "int32", "int32", "int32", "bool", "int32"]:
        raise PreflightError(f"handle: expected int32 arrays and a bool fifth, found {dtypes}.")
    if rows != tokens * ep_size:
        raise PreflightError(
            f"x: expected {tokens * ep_size} rows (tokens {tokens} × EP {ep_size}, as "
            f"moe_dispatch returned them), found {rows}."
        )


def check_channels(handle: Sequence[jax.Array], num_channels: int) -> None:
    """Refuse to combine over other channels than those of the dispatch.

    Raises:
        PreflightError: the handle was made with another number of channels.
    """
    channels = handle[1].shape[1]
    if num_channels != channels:
        raise PreflightError(
            f"config: expected {channels} channels (num_sms={2 * channels}), as the dispatch of "
            f"this handle used, found {num_channels}. Pass the num_sms of that dispatch."
        )
