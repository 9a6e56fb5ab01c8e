"""Question: how is a transport cut into channels and chunks, and what do its buffers take?

The numbers steer the GPU transport (rings of chunks between GPUs). On the CPU only ``num_sms``
shows: it fixes the width of the channel matrices in the handle.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from moeprof.kernels.arguments import integer
from moeprof.kernels.preflight import ROW_ALIGNMENT_BYTES, PreflightError

DEFAULT_NUM_SMS = 64

# Ranks that share a node and reach each other's memory; more of them need the RDMA path.
MAX_NVL_RANKS = 8

# EP size -> (nvl send, nvl recv, rdma send, rdma recv) chunk tokens. Source: Primus-Turbo
# (a6a16cdce), Config.get_dispatch_config and Config.get_combine_config; DeepEP has the same tables.
_DISPATCH_CHUNKS = {
    2: (24, 256, 6, 128),
    4: (6, 256, 6, 128),
    8: (6, 256, 6, 128),
    16: (36, 288, 20, 128),
    24: (8, 288, 32, 128),
    32: (32, 288, 32, 128),
    64: (20, 288, 28, 128),
    128: (20, 560, 32, 128),
    144: (32, 720, 12, 128),
    160: (28, 720, 12, 128),
}
_COMBINE_CHUNKS = {
    2: (10, 256, 6, 128),
    4: (9, 256, 6, 128),
    8: (4, 256, 6, 128),
    16: (4, 288, 12, 128),
    24: (1, 288, 8, 128),
    32: (1, 288, 8, 128),
    64: (1, 288, 20, 128),
    128: (1, 560, 12, 128),
    144: (2, 720, 8, 128),
    160: (2, 720, 8, 128),
}

# Per ring slot besides the row itself: 128 expert ids (8 B), 128 weights and 128 scales (4 B each).
_SLOT_EXTRA_BYTES = 128 * 8 + 128 * 4 + 128 * 4


@dataclass(frozen=True)
class Config:
    """Channels and chunk sizes of one transport call.

    Attributes:
        num_sms: compute units given to the transport; two make one channel, so it is even.
        num_max_nvl_chunked_send_tokens: tokens per chunk inside a node; smaller than the next.
        num_max_nvl_chunked_recv_tokens: ring slots per channel and peer inside a node.
        num_max_rdma_chunked_send_tokens: tokens per chunk between nodes.
        num_max_rdma_chunked_recv_tokens: ring slots between nodes, at least two chunks.

    Raises:
        PreflightError: a value breaks a rule; the text names value, rule and a valid choice.
    """

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        """Refuse what the transport would only assert on the device."""
        for field in fields(self):
            integer(f"Config: {field.name}", getattr(self, field.name))
        check_num_sms(self.num_sms)
        send, recv = self.num_max_nvl_chunked_send_tokens, self.num_max_nvl_chunked_recv_tokens
        if not 0 < send < recv:
            raise PreflightError(
                f"Config: expected 0 < num_max_nvl_chunked_send_tokens < "
                f"num_max_nvl_chunked_recv_tokens, found send {send} and recv {recv}. "
                f"Nearest valid recv: {max(send, 1) + 1}."
            )
        send, recv = self.num_max_rdma_chunked_send_tokens, self.rdma_ring_tokens
        if not 0 < 2 * send <= recv:
            raise PreflightError(
                f"Config: expected 0 < 2 × num_max_rdma_chunked_send_tokens <= "
                f"num_max_rdma_chunked_recv_tokens, found send {send} and recv {recv}. "
                f"Nearest valid recv: {2 * max(send, 1)}."
            )

    @property
    def num_channels(self) -> int:
        """Channels that the tokens of a rank are split over."""
        return self.num_sms // 2

    @property
    def rdma_ring_tokens(self) -> int:
        """Receive slots between nodes, rounded up to whole chunks."""
        chunk = max(self.num_max_rdma_chunked_send_tokens, 1)
        return -(-self.num_max_rdma_chunked_recv_tokens // chunk) * chunk


def check_num_sms(num_sms: int) -> None:
    """Refuse a number of compute units that does not make whole channels.

    Raises:
        PreflightError: ``num_sms`` is odd or below 2.
    """
    if num_sms < 2 or num_sms % 2:
        raise PreflightError(
            f"num_sms: expected an even number of at least 2 (two make a channel), "
            f"found {num_sms}. Nearest valid choice: {max(2, num_sms + num_sms % 2)}."
        )


def check_per_process_size(ep_size: int) -> int:
    """``ep_size`` itself, if a group of processes can have it.

    Raises:
        PreflightError: below 2, or above 8 and no multiple of 8.
    """
    if ep_size < 2:
        raise PreflightError(
            "setup(mode='per_process'): expected an EP group of at least 2 processes, found 1. Use "
            "mode='inproc', which serves one device as well."
        )
    if ep_size > MAX_NVL_RANKS and ep_size % MAX_NVL_RANKS:
        below = ep_size // MAX_NVL_RANKS * MAX_NVL_RANKS
        raise PreflightError(
            f"setup: an EP size above {MAX_NVL_RANKS} must be a multiple of {MAX_NVL_RANKS}, "
            f"found {ep_size}. Nearest valid choices: {below} or {below + MAX_NVL_RANKS}."
        )
    return ep_size


def check_hidden_bytes(hidden_bytes: int) -> None:
    """Refuse a row that the transport cannot move in whole words.

    Raises:
        PreflightError: not a positive multiple of 16.
    """
    if hidden_bytes <= 0 or hidden_bytes % ROW_ALIGNMENT_BYTES:
        above = max(1, -(-hidden_bytes // ROW_ALIGNMENT_BYTES)) * ROW_ALIGNMENT_BYTES
        raise PreflightError(
            f"setup(mode='per_process'): expected `hidden_bytes` to be a positive multiple of "
            f"{ROW_ALIGNMENT_BYTES}, found {hidden_bytes}. Nearest valid choice: {above}."
        )


def dispatch_config(ep_size: int, num_sms: int) -> Config:
    """Return the tuned dispatch configuration for ``ep_size`` ranks.

    Raises:
        PreflightError: no table row serves this size.
    """
    return Config(num_sms, *_chunks(_DISPATCH_CHUNKS, ep_size))


def combine_config(ep_size: int, num_sms: int) -> Config:
    """Return the tuned combine configuration for ``ep_size`` ranks.

    Raises:
        PreflightError: no table row serves this size.
    """
    return Config(num_sms, *_chunks(_COMBINE_CHUNKS, ep_size))


def _chunks(table: dict[int, tuple[int, int, int, int]], ep_size: int) -> tuple[int, int, int, int]:
    # Sizes 1, 3, 5, 6 and 7 are in no table: the next larger one inside a node has smaller chunks,
    # which always fit.
    if 1 <= ep_size <= MAX_NVL_RANKS:
        return table[min(size for size in table if size >= ep_size)]
    if ep_size not in table:
        nearest = sorted(table, key=lambda size: (abs(size - ep_size), size))[:2]
        raise PreflightError(
            f"Unsupported number of EP ranks: expected 1 to {MAX_NVL_RANKS} or one of "
            f"{[size for size in table if size > MAX_NVL_RANKS]}, found {ep_size}. "
            f"Nearest valid choices: {sorted(nearest)}."
        )
    return table[ep_size]


def nvl_buffer_size_bytes(
    ep_size: int, hidden_bytes: int, config: Config, source_meta_bytes: int = 8
) -> int:
    """Bytes per GPU of the ring between the GPUs of a node.

    Independent of the batch: the ring is chunked. Source: Primus-Turbo (a6a16cdce)
    csrc/include/primus_turbo/deep_ep/config.hpp get_nvl_buffer_size_hint; DeepEP config.hpp has
    the same. 0 is never returned: every EP size has a ring inside the node.

    Args:
        ep_size: ranks in the EP group.
        hidden_bytes: ``hidden × max(itemsize, 2)``.
        config: channels and chunks.
        source_meta_bytes: 8, or 0 where the transport was built without the internode path.
    """
    rdma_ranks, nvl_ranks = max(ep_size // MAX_NVL_RANKS, 1), min(ep_size, MAX_NVL_RANKS)
    slot_bytes = hidden_bytes + source_meta_bytes + _SLOT_EXTRA_BYTES
    lanes = config.num_channels * nvl_ranks
    ring_bytes = lanes * config.num_max_nvl_chunked_recv_tokens * slot_bytes
    return _round_up_128(lanes * (2 * rdma_ranks + 3) * 4 + ring_bytes)


def rdma_buffer_size_bytes(
    ep_size: int, hidden_bytes: int, config: Config, source_meta_bytes: int = 8
) -> int:
    """Bytes per GPU of the ring between nodes; 0 where the EP group fits one node.

    Arguments and source as `nvl_buffer_size_bytes` (get_rdma_buffer_size_hint).
    """
    if ep_size <= MAX_NVL_RANKS:
        return 0
    lanes = config.num_channels * (ep_size // MAX_NVL_RANKS)
    slot_bytes = hidden_bytes + source_meta_bytes + _SLOT_EXTRA_BYTES + 16
    ring_bytes = lanes * config.rdma_ring_tokens * slot_bytes * 2
    return _round_up_128(lanes * (MAX_NVL_RANKS * 2 + 2) * 2 * 4 + ring_bytes)


def _round_up_128(size_bytes: int) -> int:
    return -(-size_bytes // 128) * 128
