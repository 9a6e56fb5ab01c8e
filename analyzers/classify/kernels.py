"""Question: what kind of operation is a kernel, by its name alone?

For work whose HLO op is not known: JSON traces, command buffers without a match, other libraries.
What moves data is told by `moeprof.tables.kernel_names`; the patterns here tell what computes. The
first one that is found in a name decides, so what is special stands before what is general. Names
are those that the libraries give their kernels: cuBLAS, cuDNN, CUTLASS, hipBLASLt (``Cijk_``),
composable kernel, TransformerEngine, Primus-Turbo, AITER, Pallas, and XLA's own.
"""

from __future__ import annotations

import functools
import re

from moeprof.tables.kernel_names import COMMUNICATION, moves_as

__all__ = ["COMMUNICATION", "kind_of_kernel"]

_TABLE = tuple(
    (re.compile(pattern), kind)
    for kind, pattern in (
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


@functools.lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str) -> str:
    """Kind of operation of a kernel, copy or memset by its name; ``kernel`` for any other."""
    if moved := moves_as(name):
        return moved
    for pattern, kind in _TABLE:
        if pattern.search(name):
            return kind
    return "kernel"
