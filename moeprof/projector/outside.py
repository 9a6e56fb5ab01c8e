"""Question: what does a run take of a device's memory outside XLA's pool?

DeepEP allocates a ring of chunks per channel and peer when it is set up; tokens do not change it
(Primus-Turbo, jax/deep_ep: get_nvl_buffer_size_hint, get_rdma_buffer_size_hint; DeepEP,
csrc/config.hpp has the same two). With r ranks, N = max(r / 8, 1) nodes, P = min(r, 8) peers,
c = SMs / 2 channels, h bytes of a row, 8 B of source metadata:

    NVLink  128-aligned  c·P·(2N + 3)·4 + c·P·recv·(h + 8 + 128·8 + 128·4 + 128·4)
    RDMA    128-aligned  c·N·18·2·4 + c·N·recv'·2·(h + 8 + 128·8 + 128·4 + 128·4 + 16),  r > 8

recv' is the RDMA chunk rounded up to a multiple of what is sent at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.projector.breakdown import (
    Row,
)
from moeprof.projector.setting import (
    Amount,
    Count,
    Degrees,
    Setting,
    smaller,
    whole,
)
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.hardware import HardwareSpec

_SOURCE_META = 8
_ROW_EXTRAS = 128 * 8 + 128 * 4 + 128 * 4
"""Top-k ids and weights, and scales, of at most 128 each."""


class Chunks(NamedTuple):
    """Tokens of one chunk: received over NVLink, sent at once and received over RDMA."""

    nvl_recv: int
    rdma_send: int
    rdma_recv: int


DISPATCH_CHUNKS = {
    2: Chunks(256, 6, 128),
    4: Chunks(256, 6, 128),
    8: Chunks(256, 6, 128),
    16: Chunks(288, 20, 128),
    24: Chunks(288, 32, 128),
    32: Chunks(288, 32, 128),
    64: Chunks(288, 28, 128),
    128: Chunks(560, 32, 128),
    144: Chunks(720, 12, 128),
    160: Chunks(720, 12, 128),
}
"""Primus-Turbo's default per number of ranks; buffers are sized by those of dispatch."""

_TPU = Row(
    "runtime",
    "outside",
    "runtime reserve",
    0,
    "0: the memory that a TPU's runtime reports is what XLA may take, collectives within",
    "AI-Hypercomputer/maxtext, understand_logs_and_metrics.md: a run at 100.4 of 95.74 GiB",
    "medium",
)
RESERVE_BYTES = 3 * 2**30
RESERVE_PER_PEER_BYTES = 2**30 // 20
"""Device context, code objects and collective buffers of AMD's: 3 GiB and 0.05 GiB per device.
Observed: 5.8 GiB did not suffice for RCCL on 64 devices, 20 GiB did (AMD-AGI/maxtext-slurm)."""
_RESERVE_SOURCE = "AMD-AGI/maxtext-slurm, docs: more than 5.8 GiB with 64 devices, at most 20 GiB"

CUDA_CONTEXT_BYTES = 1_060_000_000
NCCL_NODE_BYTES = 4_340_000_000 - CUDA_CONTEXT_BYTES
"""Eight H100 of one node, beside the allocator: 1.06 GB before the first all-to-all, 4.34 GB
after it (NVIDIA/nccl, issue 1685): 32 channels to each of 7 peers."""
NCCL_NODE_PEERS = 7
NCCL_NETWORK_BYTES = 2**29
"""NCCL's network buffer for point-to-point, shared by all peers (NVIDIA/nccl, issue 2363)."""
_CONTEXT_SOURCE = "NVIDIA/nccl, issue 1685: 8 H100 before the first all-to-all"
_NCCL_SOURCE = (
    "NVIDIA/nccl, issues 1685 (8 H100 before and after an all-to-all), 2363 (network buffer), "
    "986 (more than two nodes need no more)"
)


def nvl_bytes(ranks: int, hidden_bytes: int, sms: int) -> int:
    """DeepEP's NVLink (xGMI) buffer of one device."""
    chunks = DISPATCH_CHUNKS[ranks]
    nodes, peers, channels = max(ranks // 8, 1), min(ranks, 8), sms // 2
    row = hidden_bytes + _SOURCE_META + _ROW_EXTRAS
    counters = channels * peers * (2 * nodes + 3) * 4
    return _aligned(counters + channels * peers * chunks.nvl_recv * row)


def rdma_bytes(ranks: int, hidden_bytes: int, sms: int) -> int:
    """DeepEP's RDMA buffer of one device; 0 where all ranks are on one node."""
    if ranks <= 8:
        return 0
    chunks = DISPATCH_CHUNKS[ranks]
    nodes, channels = ranks // 8, sms // 2
    received = -(-chunks.rdma_recv // chunks.rdma_send) * chunks.rdma_send
    row = hidden_bytes + _SOURCE_META + _ROW_EXTRAS + 16
    counters = channels * nodes * (8 * 2 + 2) * 2 * 4
    return _aligned(counters + channels * nodes * received * 2 * row)


def outside_rows(setting: Setting, degrees: Degrees) -> tuple[Row, ...]:
    """What lies outside the pool of one device."""
    devices = (
        degrees.data
        * degrees.fsdp
        * degrees.expert
        * degrees.tensor
        * degrees.context
        * degrees.pipeline
    )
    if setting.hardware.vendor == "Google":
        return (_TPU,)
    return (*reserve_rows(setting.hardware, devices, 1, "devices"), *deepep_rows(setting, degrees))


def deepep_rows(setting: Setting, degrees: Degrees) -> list[Row]:
    """DeepEP's buffers; none where the strategy is another."""
    if setting.strategy.kind != "sparse-gmm-deepep" or not setting.model.experts:
        return []
    hidden_bytes = setting.model.hidden * max(DTYPE_BYTES[setting.precision.compute], 2)
    rows = []
    for name, size_of in (("DeepEP NVLink buffer", nvl_bytes), ("DeepEP RDMA buffer", rdma_bytes)):
        size = _per_ranks(size_of, degrees.expert, hidden_bytes, setting.deepep_sms)
        formula = (
            f"ring of chunks, {setting.deepep_sms} SMs, {hidden_bytes:,} B per row, "
            f"EP {_text(degrees.expert)}"
        )
        source = "projector/outside.py"
        if size is None:
            known = ", ".join(map(str, DISPATCH_CHUNKS))
            formula = f"cannot estimate: DeepEP has chunk sizes for EP {known}"
            rows.append(Row(name, "outside", "EP buffers", None, formula, source, "unknown"))
        else:
            rows.append(Row(name, "outside", "EP buffers", size, formula, source, "exact"))
    return [row for row in rows if row.size_bytes is None or np.any(row.size_bytes)]


def _per_ranks(size_of: object, ranks: Count, hidden_bytes: int, sms: int) -> Amount | None:
    """A size per number of ranks; in an array, ranks that DeepEP does not know are too large."""
    assert callable(size_of)
    if not isinstance(ranks, np.ndarray):
        if ranks == 1:
            return 0
        return int(size_of(ranks, hidden_bytes, sms)) if ranks in DISPATCH_CHUNKS else None
    sizes = np.full(ranks.shape, np.iinfo(np.int64).max // 4)
    sizes[ranks == 1] = 0
    for known in np.unique(ranks):
        if int(known) in DISPATCH_CHUNKS:
            sizes[ranks == known] = size_of(int(known), hidden_bytes, sms)
    return sizes


def reserve_rows(hardware: HardwareSpec, ranks: Count, groups: int, unit: str) -> tuple[Row, Row]:
    """Device context, and buffers of communicators.

    ``ranks`` counts those of all ``groups`` that a rank is in, itself in each, in words ``unit``.
    """
    if hardware.vendor == "NVIDIA":
        return _nvidia_rows(ranks - groups)
    return (
        _reserve("runtime reserve", RESERVE_BYTES, "3 GiB", _RESERVE_SOURCE),
        _reserve(
            "collective buffers",
            whole(RESERVE_PER_PEER_BYTES * ranks),
            f"0.05 GiB × {_text(ranks)} {unit}",
            _RESERVE_SOURCE,
        ),
    )


def _nvidia_rows(peers: Count) -> tuple[Row, Row]:
    """CUDA's context; NCCL's channels to the peers of a node, and its buffer for the network."""
    near = smaller(peers, NCCL_NODE_PEERS)
    is_beyond = smaller(peers - near, 1)
    size = whole(near * (NCCL_NODE_BYTES / NCCL_NODE_PEERS) + is_beyond * NCCL_NETWORK_BYTES)
    formula = f"3.28 GB / 7 × {_text(near)} peers of the node"
    if not isinstance(is_beyond, int) or is_beyond:
        formula += " + 0.5 GiB for the network"
    return (
        _reserve("runtime reserve", CUDA_CONTEXT_BYTES, "1.06 GB", _CONTEXT_SOURCE),
        _reserve("collective buffers", size, formula, _NCCL_SOURCE),
    )


def _reserve(kind: str, size: Amount, formula: str, source: str) -> Row:
    name = {
        "runtime reserve": "context and code objects",
        "collective buffers": "communicators' buffers",
    }[kind]
    return Row(name, "outside", kind, size, formula, source, "low")


def _aligned(size: int) -> int:
    return -(-size // 128) * 128


def _text(count: Amount) -> str:
    return f"{count}" if isinstance(count, int) else "of each plan"
