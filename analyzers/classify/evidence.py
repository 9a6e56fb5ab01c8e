"""By what may the part of an instruction be known, and when is it a guess?"""

from __future__ import annotations

EVIDENCE = {
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
GUESS = 0.8
"""With less confidence a part is a guess, whatever the evidence is called."""
