"""What dispatch and combine compute, seen over all ranks at once.

The definition, in loops: every array has the rank as its leading axis.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class DispatchedByRank(NamedTuple):
    """The arrays of `moeprof.kernels.reference.Dispatched` of every rank, rank first."""

    recv_x: Array
    recv_topk_idx: Array
    recv_topk_weights: Array
    rank_prefix_matrix: Array
    channel_prefix_matrix: Array
    recv_channel_prefix_matrix: Array
    recv_src_idx: Array
    is_token_in_rank: Array
    send_head: Array


def dispatch(
    x: Array, topk_idx: Array, topk_weights: Array, num_experts: int, num_channels: int
) -> DispatchedByRank:
    """Send each token once to every rank that owns one of its experts.

    Args:
        x: [EP, T, hidden].
        topk_idx: int32 [EP, T, K], -1 for an unused slot.
        topk_weights: float32 [EP, T, K].
        num_experts: experts of all ranks.
        num_channels: channels that a rank's tokens are split over.
    """
    ranks, tokens, slots = topk_idx.shape
    out = _empty(ranks, tokens, slots, num_channels, x)
    experts_per_rank = num_experts // ranks
    per_channel = -(-tokens // num_channels)
    next_row = np.zeros(ranks, int)
    for source in range(ranks):
        sent = np.zeros((ranks, num_channels), np.int32)
        for token in range(tokens):
            channel = token // per_channel
            owners = topk_idx[source, token] // experts_per_rank
            for rank in range(ranks):
                if not (owners == rank).any():
                    continue
                row = next_row[rank]
                mine = owners == rank
                out.recv_x[rank, row] = x[source, token]
                out.recv_topk_idx[rank, row] = np.where(
                    mine, topk_idx[source, token] - rank * experts_per_rank, -1
                )
                out.recv_topk_weights[rank, row] = np.where(mine, topk_weights[source, token], 0)
                out.recv_src_idx[rank, row] = token
                out.is_token_in_rank[source, token, rank] = True
                out.send_head[source, token, rank] = sent[rank, channel]
                sent[rank, channel] += 1
                next_row[rank] += 1
        out.rank_prefix_matrix[:, source] = next_row
        out.channel_prefix_matrix[source] = sent.cumsum(axis=1)
        out.recv_channel_prefix_matrix[:, source] = sent.cumsum(axis=1) - sent
    return out


def _empty(ranks: int, tokens: int, slots: int, channels: int, x: Array) -> DispatchedByRank:
    rows = tokens * ranks
    return DispatchedByRank(
        recv_x=np.zeros((ranks, rows, x.shape[2]), x.dtype),
        recv_topk_idx=np.full((ranks, rows, slots), -1, np.int32),
        recv_topk_weights=np.zeros((ranks, rows, slots), np.float32),
        rank_prefix_matrix=np.zeros((ranks, ranks, ranks), np.int32),
        channel_prefix_matrix=np.zeros((ranks, ranks, channels), np.int32),
        recv_channel_prefix_matrix=np.zeros((ranks, ranks, channels), np.int32),
        recv_src_idx=np.full((ranks, rows), -1, np.int32),
        is_token_in_rank=np.zeros((ranks, tokens, ranks), np.bool_),
        send_head=np.full((ranks, tokens, ranks), -1, np.int32),
    )


def combine(x: Array, dispatched: DispatchedByRank) -> Array:
    """Sum each token's rows over the ranks that it was sent to, in float32.

    Args:
        x: [EP, T × EP, width].
        dispatched: of the dispatch that made the rows.

    Returns:
        [EP, T, width], float32.
    """
    ranks, tokens, _ = dispatched.is_token_in_rank.shape
    out = np.zeros((ranks, tokens, x.shape[2]), np.float32)
    for source, token, rank in np.argwhere(dispatched.is_token_in_rank):
        row = _row_of(dispatched, source, token, rank)
        out[source, token] += x[rank, row].astype(np.float32)
    return out


def _row_of(dispatched: DispatchedByRank, source: int, token: int, rank: int) -> int:
    ends = dispatched.rank_prefix_matrix[rank, :, rank]
    begin = ends[source - 1] if source else 0
    rows = dispatched.recv_src_idx[rank, begin : ends[source]]
    return int(begin + np.flatnonzero(rows == token)[0])


def cached_dispatch(x: Array, dispatched: DispatchedByRank) -> Array:
    """Send [EP, T, hidden] where an earlier dispatch sent its rows: [EP, T × EP, hidden]."""
    ranks, rows = dispatched.recv_src_idx.shape
    out = np.zeros((ranks, rows, x.shape[2]), x.dtype)
    for source, token, rank in np.argwhere(dispatched.is_token_in_rank):
        out[rank, _row_of(dispatched, source, token, rank)] = x[source, token]
    return out
