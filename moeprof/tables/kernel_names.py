"""Which library a kernel is of, and what it does to data, by its name: one table for all who ask.

It has what moves data: collectives, token exchanges, copies and memory sets, with the direction
of an exchange where the name tells it. What a kernel computes is no matter of this table.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple


class KernelName(NamedTuple):
    """A family of names. The first family whose pattern is found in a name decides.

    ``kind`` is what it does, in the words of `moeprof.analyzers.classify.kernels`; empty where the
    name tells the direction alone. ``direction`` is ``dispatch`` or ``combine`` of a token
    exchange, else empty. ``stream`` is the kind of stream work, as in `EVENTS`. ``vendor`` is whose
    devices run it, empty for any. ``source`` is where such names are written down.
    """

    library: str
    pattern: str
    kind: str
    direction: str
    stream: str
    vendor: str
    source: str
    example: str


_DEEP_EP = r"(?i:deep_?ep::|deep_ep_)(?!.*get_dispatch_layout)"
_MORI = r"(?:\bmori::|_ZN4mori|\bEp(?=Dispatch|Combine))(?!.*Convert)"
_MOEPROF = r"(?i:moeprof\w*::)"
_DISPATCH = r"(?i:(?:(?!combine|dispatch).)*dispatch)"
_COMBINE = r"(?i:(?:(?!combine|dispatch).)*combine)"
"""The first of the two words decides: a kernel may have the other one among its arguments."""

_OF_DEEP_EP = ("kernel", "", "deepseek-ai/DeepEP and Primus-Turbo, kernels/*.cu")
_OF_MORI = ("kernel", "AMD", "ROCm/mori, src/ops/dispatch_combine")
_OF_MOEPROF = ("kernel", "", "native/gpu/exchange")
_OF_NCCL = ("kernel", "", "NCCL and RCCL, src/device/generate.py")
_OF_XLA = ("kernel", "", "XLA, stream_executor/gpu kernels; op names of its HLO")
_OF_PROFILER = ("", "XLA, profiler names of driver calls (cupti_collector, rocm_collector)")
_OF_ROCCLR = ("AMD", "ROCm/clr, rocclr/device/blitcl.cpp")

KERNEL_NAMES = tuple(
    KernelName(*row)
    for row in (
        # communication, whoever asks for it
        (
            *("XLA", r"RaggedAllToAll|^%?ragged-all-to-all\b", "ragged_all_to_all", ""),
            *(*_OF_XLA, "stream_executor::gpu::RaggedAllToAllKernelImpl<4l>"),
        ),
        (
            *("DeepEP", rf"^(?=.*?{_DEEP_EP})" + _DISPATCH, "all_to_all", "dispatch"),
            *(*_OF_DEEP_EP, "void deep_ep::intranode::dispatch<8, 768>"),
        ),
        (
            *("DeepEP", rf"^(?=.*?{_DEEP_EP})" + _COMBINE, "all_to_all", "combine"),
            *(*_OF_DEEP_EP, "void deep_ep::internode_ll::combine<__nv_bfloat16>"),
        ),
        (
            *("DeepEP", _DEEP_EP, "all_to_all", ""),
            *(*_OF_DEEP_EP, "void deep_ep::intranode::barrier<8>"),
        ),
        (
            *("MORI", rf"^(?=.*?{_MORI})" + _DISPATCH, "all_to_all", "dispatch"),
            *(*_OF_MORI, "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>"),
        ),
        (
            *("MORI", rf"^(?=.*?{_MORI})" + _COMBINE, "all_to_all", "combine"),
            *(*_OF_MORI, "EpCombineInterNodeV1Kernel_bf16"),
        ),
        (
            *("MORI", _MORI, "communication", ""),
            *(*_OF_MORI, "mori::shmem::ShmemBarrierAllKernel"),
        ),
        (
            *("moeprof", rf"^(?=.*?{_MOEPROF})" + _DISPATCH, "all_to_all", "dispatch"),
            *(*_OF_MOEPROF, "moeprof::dispatch_rows<__nv_bfloat16>"),
        ),
        (
            *("moeprof", rf"^(?=.*?{_MOEPROF})" + _COMBINE, "all_to_all", "combine"),
            *(*_OF_MOEPROF, "moeprof::combine_rows<float>"),
        ),
        (
            *("NCCL, RCCL, XLA", r"AllToAll|^%?all-to-all\b|all2all", "all_to_all", ""),
            *(*_OF_NCCL, "ncclDevKernel_AllToAll_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ),
        (
            *("NCCL, RCCL, XLA", r"AllGather|^%?all-gather\b", "all_gather", ""),
            *(*_OF_NCCL, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ),
        (
            *("NCCL, RCCL, XLA", r"ReduceScatter|^%?reduce-scatter\b", "reduce_scatter", ""),
            *(*_OF_NCCL, "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"),
        ),
        (
            *("NCCL, RCCL, XLA, vLLM", r"AllReduce|cross_device_reduce|^%?all-reduce\b"),
            *("all_reduce", "", *_OF_NCCL, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ),
        (
            *("NCCL, RCCL, XLA", r"nccl\w*Broadcast|^%?collective-broadcast\b", "broadcast", ""),
            *(*_OF_NCCL, "ncclDevKernel_Broadcast_RING_LL"),
        ),
        (
            *("XLA", r"MultiGpuBarrier", "barrier", ""),
            *(*_OF_XLA, "stream_executor::gpu::MultiGpuBarrierKernel"),
        ),
        (
            *("driver", r"^MemcpyP2P|^MemcpyPeer", "permute", "", "copy", *_OF_PROFILER),
            "MemcpyP2P",
        ),
        (
            *("XLA", r"MemcpyP2P|MemcpyPeer|^%?collective-permute\b", "permute", ""),
            *(*_OF_XLA, "collective-permute.3"),
        ),
        (
            *("NCCL, RCCL, XLA", r"nccl\w*SendRecv|^%?(send|recv)(-start|-done)?\b"),
            *("send_recv", "", *_OF_NCCL, "ncclDevKernel_SendRecv"),
        ),
        (
            *("NCCL, RCCL, NVSHMEM, rocSHMEM, MSCCL++", r"nccl|rccl|nvshmem|rocshmem|mscclpp"),
            *("communication", "", *_OF_NCCL, "nvshmemi_transfer_rma_p2p"),
        ),
        # copies and memory sets
        (
            *("driver", r"^Memcpy(H2D|D2H|H2A|A2H|HtoD|DtoH)", "host_transfer", "", "copy"),
            *(*_OF_PROFILER, "MemcpyD2H"),
        ),
        (
            *("driver", r"MemcpyHtoD|MemcpyDtoH|^(infeed|outfeed)\b", "host_transfer", ""),
            *("kernel", *_OF_PROFILER, "hipMemcpyHtoDAsync"),
        ),
        (
            *("driver", r"^Memcpy|^Copy(Device|Host|Peer)", "copy", "", "copy", *_OF_PROFILER),
            "MemcpyD2D",
        ),
        (
            *("rocclr", r"rocclr_copy", "copy", "", "copy", *_OF_ROCCLR),
            "__amd_rocclr_copyBuffer.kd",
        ),
        (
            *("XLA", r"^memcpy\d*|CopyBuffer|^%?copy(-start|-done)?\b", "copy", "", *_OF_XLA),
            "memcpy32_post",
        ),
        (*("driver", r"^Memset", "memset", "", "memset", *_OF_PROFILER, "Memset"),),
        (
            *("rocclr", r"rocclr_fill", "memset", "", "memset", *_OF_ROCCLR),
            "__amd_rocclr_fillBufferAligned.kd",
        ),
        (
            *("AMD's profiler", r"^FillBuffer", "memset", "", "memset", *_OF_PROFILER),
            "FillBuffer",
        ),
        (*("XLA", r"^memset|FillBuffer", "memset", "", *_OF_XLA), "memset_0"),
        # what waits beside the work
        (
            *("driver", r"^(Stream|Event|Context|Device) (Sync|Synchronize|Wait)", "", ""),
            *("sync", *_OF_PROFILER, "Stream Sync"),
        ),
        # names of ops that tell the direction of an exchange that is known to be one
        (
            *("Primus-Turbo", r"^(?=.*?(?i:moe_))" + _DISPATCH, "", "dispatch", "kernel", ""),
            *("Primus-Turbo, csrc/jax", "moe_cached_dispatch"),
        ),
        (
            *("Primus-Turbo", r"^(?=.*?(?i:moe_))" + _COMBINE, "", "combine", "kernel", ""),
            *("Primus-Turbo, csrc/jax", "moe_combine_inproc"),
        ),
    )
)
"""Families of names, what is special before what is general."""

COMMUNICATION = frozenset(
    {"all_to_all", "ragged_all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast"}
    | {"permute", "send_recv", "communication", "barrier"}
)
"""Kinds that move data between devices, or wait for others to do so."""

CUSTOM_EXCHANGES = ("DeepEP", "MORI", "moeprof", "Primus-Turbo")
"""Libraries whose exchanges a program calls as custom calls, not as collectives."""

_PATTERNS = tuple((re.compile(row.pattern), row) for row in KERNEL_NAMES)


@functools.lru_cache(maxsize=1 << 16)
def family_of(name: str) -> KernelName | None:
    """The family that a name is of; None where the table has none."""
    return next((row for pattern, row in _PATTERNS if pattern.search(name)), None)


def moves_as(name: str) -> str:
    """What a kernel does to data: a kind of collective, ``copy``, ``memset``; empty for others."""
    family = family_of(name)
    return family.kind if family else ""


def direction_of(name: str) -> str:
    """``dispatch`` or ``combine`` for a kernel of a token exchange that says so, else empty."""
    family = family_of(name)
    return family.direction if family else ""


def stream_kind_of(name: str) -> str:
    """Kind of stream work that a name stands for: kernel, copy, memset or sync."""
    family = family_of(name)
    return family.stream if family else "kernel"
