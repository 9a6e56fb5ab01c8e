"""Question: what kind of operation is a kernel, by its name alone?

For work whose HLO op is not known: JSON traces, command buffers without a match, other libraries.
One table serves all who ask. The first pattern that is found in a name decides, so what is special
stands before what is general. Names are those that the libraries give their kernels: cuBLAS,
cuDNN, CUTLASS, hipBLASLt (``Cijk_``), composable kernel, TransformerEngine, Primus-Turbo, AITER,
DeepEP, NCCL and RCCL, Pallas, XLA's own, and moeprof's.
"""

from __future__ import annotations

import functools
import re

_TABLE = tuple(
    (re.compile(pattern), kind)
    for kind, pattern in (
        # communication, whoever asks for it
        ("ragged_all_to_all", r"RaggedAllToAll|^%?ragged-all-to-all\b"),
        (
            "all_to_all",
            r"(?i:deep_?ep::|deep_ep_)(?!.*get_dispatch_layout)|AllToAll|^%?all-to-all\b|all2all"
            r"|(?i:moeprof\w*::.*(dispatch|combine))",
        ),
        ("all_gather", r"AllGather|^%?all-gather\b"),
        ("reduce_scatter", r"ReduceScatter|^%?reduce-scatter\b"),
        ("all_reduce", r"AllReduce|cross_device_reduce|^%?all-reduce\b"),
        ("broadcast", r"nccl\w*Broadcast|^%?collective-broadcast\b"),
        ("barrier", r"MultiGpuBarrier"),
        ("permute", r"MemcpyP2P|MemcpyPeer|^%?collective-permute\b"),
        ("send_recv", r"nccl\w*SendRecv|^%?(send|recv)(-start|-done)?\b"),
        ("communication", r"nccl|rccl|nvshmem|rocshmem|mscclpp"),
        # copies and fills
        ("host_transfer", r"^Memcpy(H2D|D2H|H2A|A2H)|MemcpyHtoD|MemcpyDtoH|^(infeed|outfeed)\b"),
        ("copy", r"^Memcpy|^memcpy\d*|rocclr_copyBuffer|CopyBuffer|^%?copy(-start|-done)?\b"),
        ("memset", r"^Memset|^memset|rocclr_fillBuffer|FillBuffer"),
        # attention before products, as flash kernels are built from them
        (
            "attention",
            r"(?i)fmha|flash_?(attn|attention|fwd|bwd|fprop|bprop)|fused_attn|splash|sdpa"
            r"|\bmha_(fwd|bwd)|attention_kernel|paged_attention",
        ),
        (
            "grouped_gemm",
            r"(?i)grouped_?(gemm|matmul)|gemm_?grouped|\bt?gmm\b|group_gemm|ragged_dot"
            r"|megablox|moe_gemm|fused_moe",
        ),
        (
            "convolution",
            r"(?i)\bim(3|2)d2col|im2col|(?<!loop_)(?<!input_)\bconv(olution)?[_\d]*(fprop|dgrad|wgrad|fwd|bwd)"
            r"|implicit_(con|gemm)v?|cudnn.*(fprop|dgrad|wgrad)|miopen.*conv|^%?convolution\b",
        ),
        (
            "gemm",
            r"(?i)nvjet_|gemm(?!v_reduce)|cublas|^Cijk_|cutlass|gemv|hipblas|_matmul|matmul_kernel"
            r"|^dot[_.]|^%?dot\b|s\d+gemm|wgmma",
        ),
        ("sort", r"(?i)radix_?sort|\bsort|merge_?sort|DeviceSort|cub::.*Sort"),
        ("top_k", r"(?i)top_?k"),
        ("scatter", r"(?i)scatter"),
        ("gather", r"(?i)gather|embedding"),
        ("reduce", r"(?i)(^|_)reduce|reduction|cumsum|scan_kernel|softmax|(layer|rms)_?norm"),
        (
            "copy",
            r"(?i)^(wrapped_)?(transpose|slice|concatenate|copy|pad)|transpose_fusion|slice_fusion",
        ),
        ("elementwise", r"(?i)^(loop|input|wrapped)_|elementwise|^fusion|vectorized_"),
    )
)
"""Pattern -> kind of operation; the first that is found in a kernel's name decides."""

COMMUNICATION = frozenset(
    {"all_to_all", "ragged_all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast"}
    | {"permute", "send_recv", "communication", "barrier"}
)
"""Kinds that move data between devices, or wait for others to do so."""


@functools.lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str) -> str:
    """Kind of operation of a kernel, copy or memset by its name; ``kernel`` for any other."""
    for pattern, kind in _TABLE:
        if pattern.search(name):
            return kind
    return "kernel"
