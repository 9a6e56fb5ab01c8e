"""Question: into which parts and phases is a training step divided, and by what are they known?

Evidence for a part has a confidence: below `GUESS` it is a guess.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from moeprof.hlo.program import OF_TORCH
from moeprof.tables.name_rule import op_name_parts

MEANINGS = {
    "router": "gate scores, top-k, routing weights and masks",
    "permute": "sorting and gathering tokens into expert order, on the device",
    "dispatch": "sending tokens to the ranks of their experts",
    "grouped_gemm": "matrix products of the routed experts",
    "expert_elementwise": "activation, masks and layout changes between the experts' products",
    "combine": "bringing expert outputs back to the tokens' ranks",
    "unpermute": "restoring token order and summing over the chosen experts",
    "moe_other": "in the MoE layer, part not recognised",
    "shared_expert": "the expert that every token visits",
    "attention": "attention, with its projections",
    "norm": "normalisation layers",
    "dense_mlp": "feed-forward layers without experts",
    "convolution": "convolutions, with the changes of layout that they ask for",
    "embedding": "token embedding",
    "head": "output projection to the vocabulary",
    "loss": "loss and its derivative",
    "optimizer": "optimizer, clipping, gradient norm",
    "weight_gather": "gathering sharded weights before they are used",
    "gradient_reduce": "summing gradients over devices, reduce-scatters included",
    "collectives": "collectives that serve none of the parts above",
    "copies": "copies and memory sets that no part above asked for",
    "loop_gaps": "inside a loop while none of its ops runs: loop control, waiting for a core",
    "other": "has an op name or a source line, but no rule matched",
    "unattributed": "no HLO instruction, or one without name, source or named neighbour",
}
"""Component -> what it holds, in the order in which a report lists them."""

MOE = frozenset(
    {"router", "permute", "dispatch", "grouped_gemm", "expert_elementwise"}
    | {"combine", "unpermute", "moe_other"}
)

COLLECTIVES = frozenset(
    {"all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute"}
    | {"collective-broadcast", "ragged-all-to-all"}
)
EXCHANGES = frozenset({"all-to-all", "ragged-all-to-all"})
LOOPS = frozenset({"while", "conditional", "call"})
COPIES = frozenset({"copy", "copy-start", "copy-done"})

PHASES = ("forward", "recompute", "backward", "other")
_LATEST_FIRST = ("backward", "recompute", "forward")


@functools.lru_cache(maxsize=1 << 14)
def phase_of(op_name: str) -> str:
    """Phase that JAX's name stack states.

    ``rematted_computation`` marks recompute; else ``transpose(`` marks backward and ``jvp(``
    forward. Paths of PyTorch's ops begin with ``torch/`` and the phase. What is outside the
    differentiated function (optimizer, metrics) is other. A merged name counts as the later phase
    of its parts.
    """
    found = {_phase_of_one(part) for part in op_name_parts(op_name)}
    return next((phase for phase in _LATEST_FIRST if phase in found), "other")


@functools.lru_cache(maxsize=1 << 14)
def is_joined(op_name: str) -> bool:
    """Whether a merged name has parts outside of the differentiated function and inside it."""
    found = {_phase_of_one(part) for part in op_name_parts(op_name)}
    return "other" in found and len(found) > 1


def _phase_of_one(op_name: str) -> str:
    if op_name.startswith(OF_TORCH):
        return op_name.split("/", 2)[1]
    if "rematted_computation" in op_name:
        return "recompute"
    if "transpose(" in op_name:
        return "backward"
    return "forward" if "jvp(" in op_name else "other"


BY_STRUCTURE = frozenset({"structure", "neighbour"})
"""What the program does not name itself."""
BY_RULE = "names"
"""What the user names."""
GUESS = 0.8
"""With less confidence a part is a guess, whatever the evidence is called."""


class How(NamedTuple):
    """A way to know a part: its evidence, and how often it is right, from 0 to 1."""

    evidence: str
    confidence: float


HOW = {
    "names": How("names", 1.0),
    "target": How("target", 0.99),
    "scope": How("scope", 0.99),
    "anchor": How("structure", 0.99),  # a product, a choice or an exchange that flow names itself
    "flow": How("structure", 0.99),  # what lies between anchors
    "line": How("structure", 0.99),  # its line does the same in the forward pass
    "chain": How("structure", 0.98),  # its line is of one part in the forward pass
    "mixed line": How("structure", 0.85),  # its line is of several
    "innermost function": How("function", 0.99),
    "outer function": How("function", 0.78),
    "parameter": How("parameter", 0.99),
    "primitive": How("primitive", 0.95),
    "opcode": How("opcode", 0.99),
    "cargo": How("neighbour", 0.97),  # an exchange, by who made what it sends
    "neighbours": How("neighbour", 0.97),  # those that are known agree
    "split vote": How("neighbour", 0.92),  # they do not
    "context": How("function", 0.1),  # in the MoE layer, nobody knows where
    "none": How("none", 0.1),
}
"""Ways to know a part. The confidences are the shares of time that each names right over the
programs of ``benchmarks/naming``, rounded down."""


@dataclass(frozen=True)
class Finding:
    """Component of an op, and how it is known: a key of `HOW`."""

    component: str
    how: str
