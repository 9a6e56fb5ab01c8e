"""Question: what does a custom call do, by its target?

Names are those of moeprof's own handlers, of Primus-Turbo (``ck_grouped_gemm``, ``moe_dispatch``
with or without a suffix for the runtime mode), and of cuBLASLt's grouped product.
"""

from __future__ import annotations

import re

_EXCHANGE = re.compile(
    r"^(?:moeprof_)?moe_(?:internode_)?(?:cached_)?(dispatch|combine)(?:_inproc|_per_process)?$"
)
_GROUPED = re.compile(r"^(moeprof|ck)_grouped_gemm|^__cublas\$lt\$groupedMatmul$|^t?gmm$")
_OFFSETS = re.compile(r"^(moeprof_)?compute_group_offs$")


def exchange_of(target: str) -> str | None:
    """``dispatch`` or ``combine`` for a token exchange, cached and internode ones included."""
    found = _EXCHANGE.match(target)
    return found.group(1) if found else None


def is_grouped_gemm(target: str) -> bool:
    """Whether the call multiplies each expert's rows by its own matrix."""
    return bool(_GROUPED.match(target))


def component_of_target(target: str) -> str | None:
    """Component of a custom call, or None where the target does not tell."""
    if is_grouped_gemm(target):
        return "grouped_gemm"
    return "expert_elementwise" if _OFFSETS.match(target) else exchange_of(target)
