"""By what may the part of an instruction be known, how sure is that, and when is it a guess?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

EVIDENCE = {
    "names": "a rule of the user's (`--names`)",
    "target": "the name of the custom call",
    "scope": "`jax.named_scope` and module names in the op_name",
    "structure": "how values flow: what feeds and reads it, or its source line in the forward pass",
    "function": "functions, classes and files of its source lines",
    "parameter": "the name of the weight that it reads",
    "primitive": "the JAX primitive that it was made of",
    "opcode": "what it does, whatever it is for",
    "neighbour": "the ops that read and write the same values",
    "none": "nothing",
}
"""Evidence -> what it is."""
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
