"""Question: which kernels may an instruction run, as far as their kinds tell?

Kernels that the compiler generates carry the name of their instruction. Those of libraries do
not: their names tell what they compute (NVIDIA's and AMD's libraries alike), no more.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from moeprof import vocabulary

Floats = npt.NDArray[np.float64]

KERNELS = (
    "named",
    "gemm",
    "conv",
    "attention",
    "sort",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "exchange",
    "copy",
    "memset",
    "foreign",
    "other",
)
"""Kinds of device work. ``named`` is what carries the name of an instruction, ``foreign`` what
belongs to none: a graph recorded as one piece, a copy from or to the host, a wait."""

_GRAPH = re.compile(r"^(cuda|hip)?[_ ]?graph([_ ]|$)|graph_?launch", re.IGNORECASE)
"""A graph that the profiler recorded as one piece."""

_COLLECTIVES = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
}
"""By kind of operation in the vocabulary; any other communication is an exchange."""
_COMPUTES = {
    "gemm": "gemm",
    "grouped_gemm": "gemm",
    "convolution": "conv",
    "attention": "attention",
    "sort": "sort",
    "top_k": "sort",
}
"""By kind of operation in the vocabulary: of kernels and of custom calls alike."""
_FUSIONS = "XLA fusions"
"""Named by their ops: an instruction that moves data, not a copy of the driver."""
_PARALLEL_PRIMITIVES = ("CUB", "CUB, rocPRIM")
"""XLA calls these libraries to sort, which takes scans, histograms and more of theirs."""

INSTRUCTIONS = (
    "fusion",
    "move",
    "fill",
    "library fusion",
    "gemm",
    "conv",
    "attention",
    "sort",
    "custom",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "exchange",
    "copy",
    "id",
    "plain",
)
"""Kinds of instructions: ``move`` and ``fill`` are fusions that a copy or a memset can replace,
``id`` asks which device it is, ``plain`` is any other opcode."""

_OPCODES = {
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-reduce": "all-reduce",
    "all-to-all": "exchange",
    "ragged-all-to-all": "exchange",
    "collective-permute": "exchange",
    "collective-broadcast": "exchange",
    "send": "exchange",
    "recv": "exchange",
    "copy": "copy",
    "partition-id": "id",
    "replica-id": "id",
    "sort": "sort",
    "dot": "gemm",
    "convolution": "conv",
}
_INDEXING = frozenset(
    {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "convert", "broadcast"}
) | frozenset({"compare", "select", "add", "subtract", "multiply", "clamp", "minimum", "maximum"})
_MOVES = frozenset({"dynamic-slice", "dynamic-update-slice", "slice", "copy"})
_FILLS = frozenset({"parameter", "constant", "broadcast", "bitcast", "tuple"})

NEVER = -np.inf
_STRONG, _LIKELY, _POSSIBLE, _REMOTE = 4.0, 3.0, 1.0, 0.5
_FITS = {
    "gemm": {"gemm": _STRONG, "custom": _POSSIBLE, "library fusion": _POSSIBLE, "conv": _REMOTE}
    | {"attention": _POSSIBLE},
    "conv": {"conv": _STRONG, "custom": _POSSIBLE, "library fusion": _POSSIBLE, "gemm": _REMOTE},
    "attention": {"attention": _STRONG, "custom": _LIKELY, "library fusion": _REMOTE},
    "sort": {"sort": _STRONG, "custom": _POSSIBLE},
    "all-gather": {"all-gather": _STRONG, "custom": _POSSIBLE},
    "reduce-scatter": {"reduce-scatter": _STRONG, "custom": _POSSIBLE},
    "all-reduce": {"all-reduce": _STRONG, "custom": _POSSIBLE},
    "exchange": {"exchange": _STRONG, "custom": _POSSIBLE},
    "copy": {"copy": _LIKELY, "move": _LIKELY, "id": _REMOTE, "custom": _REMOTE, "sort": _REMOTE}
    | {"all-gather": _REMOTE, "exchange": _REMOTE},
    "memset": {"fill": _LIKELY, "id": _LIKELY, "gemm": _POSSIBLE, "conv": _POSSIBLE}
    | {"attention": _POSSIBLE, "custom": _REMOTE, "sort": _REMOTE, "library fusion": _REMOTE},
    "other": {"custom": _LIKELY, "attention": _POSSIBLE, "library fusion": _POSSIBLE}
    | {"sort": _POSSIBLE, "conv": _POSSIBLE, "gemm": _REMOTE, "plain": _POSSIBLE},
}

SEVERAL = frozenset({"gemm", "conv", "attention", "sort", "custom", "plain"})
"""Kinds of instructions that run several kernels one after the other as a matter of course."""

_MAY_RUN_NOTHING = frozenset({"id", "custom", "exchange", "all-gather", "plain"})
_AS_A_RULE, _AT_TIMES, _HARDLY = -0.5, -2.0, -4.0


def kernel_kind(name: str, kind: str) -> str:
    """One of `KERNELS` for device work that carries no instruction's name."""
    if kind == "sync" or _GRAPH.search(name):
        return "foreign"
    entry = vocabulary.kernel(name)
    found = _kind_of_entry(entry) if entry is not None else ""
    return found or (kind if kind in KERNELS else "other")


def _kind_of_entry(entry: vocabulary.Entry) -> str:
    """One of `KERNELS`, or empty; libraries' token exchanges run in custom calls of any kind."""
    if entry.kind == "host_transfer":
        return "foreign"
    if entry.kind in vocabulary.COMMUNICATION and entry.library in vocabulary.token_exchanges():
        return ""
    if entry.stream in ("copy", "memset"):
        return entry.stream
    if entry.kind in ("copy", "memset") and entry.library != _FUSIONS:
        return entry.kind
    if entry.kind in vocabulary.COMMUNICATION:
        return _COLLECTIVES.get(entry.kind, "exchange")
    return _computed(entry)


def _computed(entry: vocabulary.Entry) -> str:
    """A kind that kernels and instructions have in common; empty where the entry has none."""
    return "sort" if entry.library in _PARALLEL_PRIMITIVES else _COMPUTES.get(entry.kind, "")


def instruction_kind(opcode: str, target: str, details: str, inside: frozenset[str]) -> str:
    """One of `INSTRUCTIONS`; ``inside`` are the opcodes of the fused computation."""
    if opcode == "fusion" and "sort" in inside:
        return "sort"
    if opcode == "fusion":
        if inside and inside <= _FILLS and "broadcast" in inside:
            return "fill"
        if inside & _MOVES and inside <= _MOVES | _INDEXING:
            return "move"
        return "library fusion" if "kind=kCustom" in details else "fusion"
    if opcode == "custom-call":
        entry = vocabulary.target(target)
        return (_computed(entry) if entry is not None else "") or "custom"
    return _OPCODES.get(opcode.removesuffix("-start"), "plain")


def fit_table() -> Floats:
    """How well work of a kind fits an instruction of a kind; `NEVER` where it cannot be.

    Shape (`KERNELS`, `INSTRUCTIONS`). ``named`` fits nothing here: its name decides.
    """
    table = np.full((len(KERNELS), len(INSTRUCTIONS)), NEVER)
    for kernel, fits in _FITS.items():
        for instruction, score in fits.items():
            table[KERNELS.index(kernel), INSTRUCTIONS.index(instruction)] = score
    return table


def skip_costs() -> Floats:
    """What it costs that an instruction of a kind ran no kernel. Shape (`INSTRUCTIONS`,)."""
    return np.array([0.2 if kind in _MAY_RUN_NOTHING else 2.0 for kind in INSTRUCTIONS])


def again_scores() -> Floats:
    """What it adds (≤ 0) that an instruction runs one kernel more, after work of a kind.

    Shape (`KERNELS`, `INSTRUCTIONS`). Libraries clear a buffer, then compute: that costs nothing.
    """
    table = np.full((len(KERNELS), len(INSTRUCTIONS)), _HARDLY)
    for column, instruction in enumerate(INSTRUCTIONS):
        if instruction in SEVERAL:
            table[:, column] = _AT_TIMES if instruction == "gemm" else _AS_A_RULE
            table[KERNELS.index("memset"), column] = 0.0
    return table
