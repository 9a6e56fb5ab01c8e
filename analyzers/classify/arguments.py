"""Which collectives move the program's own weights, and which its tokens.

A collective that reads an argument of the program moves weights in a training step, where tokens
are computed from integers first. A benchmark or a test of one layer takes the tokens as an argument
too. There the user's scope decides: nobody names the gather of a weight "dispatch". The argument's
own name goes before that, ``params['mlp']['w_up']`` is a weight wherever it is read.
"""

from __future__ import annotations

import re

from moeprof.hlo.program import FLOATS, Op, Program

_WEIGHT = re.compile(
    r"\b(params?|variables|weight|kernel\w*|embedding\w*|\w+_proj|opt_state|optimizer|master|"
    r"[wW]|w[iogqkv123](_\d)?|[wW]_\w+)\b"
)
"""Names of an argument or of a part of it that are those of weights in JAX's libraries."""


def reads_arguments(program: Program, op: Op) -> bool:
    """Whether it reads an array of floats that the program was given, as it is or a view of it."""
    return bool(_arguments(program, op))


def reads_named_weights(program: Program, op: Op) -> bool:
    """Whether one of those arrays has the name of a weight."""
    return any(_WEIGHT.search(given.op_name) for given in _arguments(program, op))


def _arguments(program: Program, op: Op) -> list[Op]:
    origins = (program.origin(name) for name in op.operands)
    return [given for given in origins if given is not None and given.dtype in FLOATS]
