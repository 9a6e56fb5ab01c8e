"""Question: what must the kernels return? The slow twins, in plain jnp.

They run on every platform, stand in where the native library is absent, and are what every kernel
is tested against.

A grouped GEMM is one masked product per group, accumulated in float32. It runs under jit and vmap,
and JAX differentiates it. It cannot raise from inside a compiled program: where the native handler
refuses lengths (negative, past the rows, offsets that are not their sums) the twin returns NaN
everywhere.

Dispatch and combine run inside a shard_map. Every rank gathers everything from its group and picks
its own rows, so they move EP times the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from moeprof.kernels.arguments import vary_alike

AxisName = str | tuple[str, ...]


def grouped_gemm(
    a: jax.Array,
    b: jax.Array,
    group_lens: jax.Array,
    group_offs: jax.Array | None = None,
    transA: bool = False,
    transB: bool = False,
) -> jax.Array:
    """``out[i] = a[i] @ b[g(i)]``, rows sorted by group; rows past the sum are zero.

    Args:
        a: ``[M, k]``, or ``[k, M]`` with transA.
        b: ``[G, k, n]``, or ``[G, n, k]`` with transB; the dtype of ``a``.
        group_lens: integers ``[G]``.
        group_offs: their exclusive prefix sum ``[G + 1]``; checked, not needed.

    Returns:
        ``[M, n]`` of the dtype of ``a``.
    """
    rows = a.T if transA else a
    weights = jnp.swapaxes(b, 1, 2) if transB else b
    owner, is_sound = _owners(group_lens, group_offs, rows.shape[0])

    def add_group(out: jax.Array, group: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, weight = group
        mine = (owner == index)[:, None]
        product = _dot(jnp.where(mine, rows, 0), weight)
        return jnp.where(mine, product, out), None

    zeros = jnp.zeros((rows.shape[0], weights.shape[2]), jnp.float32)
    zeros, rows, weights, owner = vary_alike(zeros, rows, weights, owner)
    indices = jnp.arange(weights.shape[0], dtype=owner.dtype)
    out, _ = jax.lax.scan(add_group, zeros, (indices, weights))
    return jnp.where(is_sound, out, jnp.nan).astype(a.dtype)


def grouped_gemm_variable_k(
    lhs: jax.Array,
    rhs: jax.Array,
    group_lens: jax.Array,
    group_offs: jax.Array | None = None,
    preferred_element_type: DTypeLike | None = None,
) -> jax.Array:
    """``out[g] = lhs[rows of g].T @ rhs[rows of g]``; zero for an empty group.

    Args:
        lhs: ``[M, m]``.
        rhs: ``[M, n]``, the dtype of ``lhs``.
        group_lens: integers ``[G]``.
        group_offs: their exclusive prefix sum ``[G + 1]``; checked, not needed.
        preferred_element_type: dtype of the result; that of ``lhs`` where left out.

    Returns:
        ``[G, m, n]``.
    """
    owner, is_sound = _owners(group_lens, group_offs, lhs.shape[0])

    def one_group(index: jax.Array) -> jax.Array:
        mine = (owner == index)[:, None]
        return _dot(jnp.where(mine, lhs, 0).T, jnp.where(mine, rhs, 0))

    out = jax.lax.map(one_group, jnp.arange(group_lens.shape[0], dtype=owner.dtype))
    return jnp.where(is_sound, out, jnp.nan).astype(preferred_element_type or lhs.dtype)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32, precision="highest")


def _owners(
    group_lens: jax.Array, group_offs: jax.Array | None, rows: int
) -> tuple[jax.Array, jax.Array]:
    """The group of each row (G past the sum), and whether lengths and offsets are sound."""
    ends = jnp.cumsum(group_lens, dtype=group_lens.dtype)
    owner = jnp.searchsorted(ends, jnp.arange(rows, dtype=ends.dtype), side="right")
    # An int32 sum may wrap; a length past the rows is seen before that.
    is_sound = jnp.all((group_lens >= 0) & (group_lens <= rows) & (ends >= 0) & (ends <= rows))
    if group_offs is not None and group_offs.shape[-1] > 0:
        is_sound &= jnp.all(group_offs[1:] == ends) & (group_offs[0] == 0)
    return owner.astype(jnp.int32), is_sound


class Dispatched(NamedTuple):
    """What one rank holds after a dispatch. EP ranks, T tokens each, Rw = T × EP rows, C channels.

    Attributes:
        recv_x: [Rw, hidden], rows by source rank, then by token; unused rows are zero.
        recv_scales: float32 [Rw, scales].
        recv_topk_idx: int32 [Rw, K], ids of this rank's experts from 0; -1 elsewhere.
        recv_topk_weights: float32 [Rw, K], zero where the id is -1.
        rank_prefix_matrix: int32 [EP, EP], tokens from ranks up to and including s to rank d.
        channel_prefix_matrix: int32 [EP, C], tokens sent to d in channels up to and including c.
        recv_channel_prefix_matrix: int32 [EP, C], where channel c starts in the rows from s.
        recv_src_idx: int32 [Rw], token number on the source rank; -1 in unused rows.
        is_token_in_rank: bool [T, EP].
        send_head: int32 [T, EP], place of the token in its channel to d; -1 where it is not sent.
    """

    recv_x: jax.Array
    recv_scales: jax.Array
    recv_topk_idx: jax.Array
    recv_topk_weights: jax.Array
    rank_prefix_matrix: jax.Array
    channel_prefix_matrix: jax.Array
    recv_channel_prefix_matrix: jax.Array
    recv_src_idx: jax.Array
    is_token_in_rank: jax.Array
    send_head: jax.Array


Handle = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def dispatch(
    x: jax.Array,
    scales: jax.Array,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    *,
    num_experts: int,
    num_channels: int,
    ep_size: int,
    axis: AxisName,
) -> Dispatched:
    """Send each token once to every rank that owns one of its experts.

    Args:
        x: [T, hidden].
        scales: float32 [T, scales]; zero columns where there are none.
        topk_idx: int32 [T, K], -1 for an unused slot.
        topk_weights: float32 [T, K].
        num_experts: experts of all ranks.
        num_channels: channels that a rank's tokens are split over.
        ep_size: ranks of the group.
        axis: the mesh axes that make the group.
    """
    tokens, me = x.shape[0], jax.lax.axis_index(axis)
    experts_per_rank = num_experts // ep_size
    all_idx = _gather(topk_idx, axis)
    in_rank = _is_token_in_rank(all_idx, experts_per_rank, ep_size)
    rank_prefix = jnp.cumsum(in_rank.sum(axis=1, dtype=jnp.int32), axis=0, dtype=jnp.int32)
    to_me = in_rank[:, :, me].reshape(-1)
    (source,) = jnp.nonzero(to_me, size=tokens * ep_size, fill_value=0)
    used = jnp.arange(tokens * ep_size) < rank_prefix[-1, me]

    local = all_idx.reshape(tokens * ep_size, -1)[source] - me * experts_per_rank
    is_mine = used[:, None] & (local >= 0) & (local < experts_per_rank)
    weights = _gather(topk_weights, axis).reshape(tokens * ep_size, -1)[source]
    channel_prefix = jax.vmap(_channel_prefix, in_axes=(0, None))(in_rank, num_channels)
    return Dispatched(
        recv_x=_rows(_gather(x, axis), source, used),
        recv_scales=_rows(_gather(scales, axis), source, used),
        recv_topk_idx=jnp.where(is_mine, local, -1).astype(jnp.int32),
        recv_topk_weights=jnp.where(is_mine, weights, 0.0),
        rank_prefix_matrix=rank_prefix,
        channel_prefix_matrix=channel_prefix[me],
        recv_channel_prefix_matrix=_shift_right(channel_prefix[:, me]),
        recv_src_idx=jnp.where(used, source % tokens, -1).astype(jnp.int32),
        is_token_in_rank=in_rank[me],
        send_head=_send_head(in_rank[me], channel_prefix[me]),
    )


def cached_dispatch(x: jax.Array, handle: Handle, *, axis: AxisName) -> jax.Array:
    """Send [T, hidden] rows where an earlier dispatch sent them: [T × EP, hidden]."""
    rank_prefix, _, _, recv_src_idx, _, _ = handle
    ends = rank_prefix[:, jax.lax.axis_index(axis)]
    rows = jnp.arange(recv_src_idx.shape[0])
    source_rank = jnp.searchsorted(ends, rows, side="right")
    source = source_rank * x.shape[0] + recv_src_idx
    return _rows(_gather(x, axis), source, rows < ends[-1])


def combine(
    x: jax.Array, topk_weights: jax.Array, handle: Handle, *, axis: AxisName
) -> tuple[jax.Array, jax.Array]:
    """Sum each token's rows over the ranks that it was sent to.

    Args:
        x: [T × EP, hidden], one row per received token.
        topk_weights: float32 [T × EP, K], a second payload summed likewise; K may be 0.
        handle: of the dispatch.
        axis: the mesh axes that make the group.

    Returns:
        ([T, hidden], [T, K]); sums run over ranks in order, in float32.
    """
    rank_prefix, channel_prefix, _, _, in_rank, send_head = handle
    me = jax.lax.axis_index(axis)
    first_row = jnp.where(me > 0, rank_prefix[me - 1], 0)
    starts = jnp.take(
        _shift_right(channel_prefix),
        _channel_of(in_rank.shape[0], channel_prefix.shape[1]),
        axis=1,
    )
    rows = first_row[:, None] + starts + send_head.T
    return (
        _sum_rows(_gather(x, axis), rows, in_rank.T).astype(x.dtype),
        _sum_rows(_gather(topk_weights, axis), rows, in_rank.T),
    )


def _gather(rows: jax.Array, axis: AxisName) -> jax.Array:
    gathered: jax.Array = jax.lax.all_gather(rows, axis)
    return gathered


def _is_token_in_rank(topk_idx: jax.Array, experts_per_rank: int, ep_size: int) -> jax.Array:
    owner = jnp.where(topk_idx >= 0, topk_idx // experts_per_rank, -1)
    return (owner[..., None] == jnp.arange(ep_size)).any(axis=-2)


def _rows(gathered: jax.Array, source: jax.Array, used: jax.Array) -> jax.Array:
    ranks, tokens, width = gathered.shape
    flat = gathered.reshape(ranks * tokens, width)
    return jnp.where(used[:, None], flat[source], jnp.zeros((), flat.dtype))


def _channel_of(tokens: int, num_channels: int) -> jax.Array:
    return jnp.arange(tokens) // -(-tokens // num_channels)


def _channel_prefix(in_rank: jax.Array, num_channels: int) -> jax.Array:
    """[T, EP] bool to [EP, C]: tokens per destination up to the end of each channel."""
    tokens = in_rank.shape[0]
    ends = jnp.minimum((jnp.arange(num_channels) + 1) * -(-tokens // num_channels), tokens)
    return jnp.cumsum(in_rank, axis=0, dtype=jnp.int32)[ends - 1].T


def _send_head(in_rank: jax.Array, channel_prefix: jax.Array) -> jax.Array:
    channel = _channel_of(in_rank.shape[0], channel_prefix.shape[1])
    starts = jnp.take(_shift_right(channel_prefix), channel, axis=1).T
    return jnp.where(in_rank, jnp.cumsum(in_rank, axis=0, dtype=jnp.int32) - 1 - starts, -1)


def _shift_right(prefix: jax.Array) -> jax.Array:
    """Inclusive prefix along the last axis to exclusive."""
    return jnp.pad(prefix, ((0, 0), (1, 0)))[:, :-1]


def _sum_rows(gathered: jax.Array, rows: jax.Array, sent: jax.Array) -> jax.Array:
    total = jnp.zeros((rows.shape[1], gathered.shape[-1]), jnp.float32)
    for rank in range(gathered.shape[0]):  # in rank order: float sums must not depend on arrival
        picked = gathered[rank][jnp.where(sent[rank], rows[rank], 0)].astype(jnp.float32)
        total += jnp.where(sent[rank][:, None], picked, 0.0)
    return total
