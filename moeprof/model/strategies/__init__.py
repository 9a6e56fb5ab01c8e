"""How tokens reach their experts and back: all strategies have the same signature.

Scopes, under every strategy: ``permute`` and ``local_permute`` rearrange rows on one device,
``dispatch`` and ``combine`` move them between devices, ``experts`` multiplies, ``unpermute`` undoes
the rearrangements and applies the routing weights, which with DeepEP ``experts`` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

import jax

from moeprof.model.layers import Routing
from moeprof.model.layout import Job

# Kind -> module and function.
_FUNCTIONS = {
    "dense": ("dense", "run_experts"),
    "sparse-ragged-dot": ("sorted_experts", "run_ragged_dot"),
    "sparse-gmm": ("sorted_experts", "run_gmm"),
    "sparse-gmm-deepep": ("sorted_experts", "run_deepep"),
}


class Routed(NamedTuple):
    """What the routed experts add to the activations, and how full the receive buffer was.

    ``out`` has the shape and dtype of the activations [B, S, M]. ``received_rows`` is an int32
    scalar: rows of this rank's dispatch buffer that hold a token. A buffer row is one (token,
    expert) pair, except with DeepEP, where it is one token however many of its experts are here.
    """

    out: jax.Array
    received_rows: jax.Array


# (activations [B, S, M], routing of B·S tokens, this rank's expert matrices, job) -> Routed
RunExperts = Callable[[jax.Array, Routing, dict[str, jax.Array], Job], Routed]


def load_strategy(kind: str) -> RunExperts:
    """The function of a strategy; imported when asked for, since some need the native library."""
    module, function = _FUNCTIONS[kind]
    run: RunExperts = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return run
