"""Question: into which parts is a training step divided?"""

from __future__ import annotations

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
