"""Question: how long do dispatch and combine take, and how much memory do their gathers pass?

Bytes that a rank sends in one dispatch, itself included (a combine sends as many back):

dense-cfX     experts · capacity rows of each sequence: tokens · slots / sequence
sparse        one row per token and expert: tokens · top_k
-deepep       one row per token and rank that holds one of its experts

With K experts of E chosen evenly and E/G of them in each of G places, a token needs

    G · (1 − Π_{i<K} (E − E/G − i) / (E − i))

places (hypergeometric). DeepEP sends one copy to each *domain* over the network and one to each
rank inside (deepseek-ai/DeepEP, README, "Internode").

Memory passes, in rows of the buffer read or written (lists of MaxText's layers/moe.py with
DeepEP and grouped GEMM, ROCm/maxtext @1c5729088): sparse forward 5 (zeros, local permute, unsort),
backward 8; DeepEP forward 4 (fan-out, unsort, fan-in), backward 9. Rows of tokens · top_k: sparse 8
each way (repeat, sort, unsort, sum). Capacity path: the transposes beside each all-to-all, 4 each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.projector.setting import Count, Degrees, Setting
from moeprof.projector.timing.formats import item_bytes
from moeprof.projector.timing.ground import Ground
from moeprof.projector.timing.links import Links, all_to_all_s, slower
from moeprof.projector.timing.reals import Real
from moeprof.projector.timing.routed_rows import Routed


class _Passes(NamedTuple):
    buffer_forward: int
    buffer_backward: int
    tokens: int


_PASSES = {
    "dense": _Passes(4, 4, 0),
    "sparse-ragged-dot": _Passes(5, 8, 8),
    "sparse-gmm": _Passes(5, 8, 8),
    "sparse-gmm-deepep": _Passes(4, 9, 0),
}


def exchange_s(ground: Ground, routed: Routed) -> Real:
    """Seconds of one dispatch and one combine of one MoE layer and microbatch; 0 without EP."""
    setting, degrees, links = ground.setting, ground.degrees, ground.links
    peers = ground.groups.exchange
    row_bytes = setting.model.hidden * item_bytes(setting) / degrees.tensor
    if setting.strategy.kind == "sparse-gmm-deepep":
        one_way = _deepep_s(setting, peers.size, peers.inside, ground.tokens * row_bytes, links)
    else:
        rows = routed.computed if setting.strategy.kind == "dense" else routed.useful
        one_way = all_to_all_s(rows * row_bytes, peers, links)
    return np.where(np.asarray(degrees.expert) > 1, 2 * one_way * routed.overload, 0.0)


def permute_bytes(setting: Setting, degrees: Degrees, routed: Routed) -> tuple[Real, Real]:
    """Bytes that gathers, masks and copies around the exchange pass: forward, backward."""
    passes = _PASSES[setting.strategy.kind]
    row_bytes = setting.model.hidden * item_bytes(setting) / degrees.tensor
    forward = passes.buffer_forward * routed.buffer + passes.tokens * routed.useful
    backward = passes.buffer_backward * routed.buffer + passes.tokens * routed.useful
    return forward * row_bytes, backward * row_bytes


def places_needed(experts: int, top_k: int, places: Count) -> Real:
    """Expected number of places that hold at least one of a token's experts."""
    groups = np.asarray(places, dtype=np.float64)
    each = experts / groups
    missed = np.ones_like(groups)
    for i in range(top_k):
        missed = missed * np.maximum(experts - each - i, 0) / (experts - i)
    needed: Real = groups * (1 - missed)
    return needed


def _deepep_s(
    setting: Setting, size: Count, inside: Count, token_bytes: Real, links: Links
) -> Real:
    model = setting.model
    domains = np.maximum(np.asarray(size) // inside, 1)
    copies = places_needed(model.experts, model.top_k, size)
    trips = places_needed(model.experts, model.top_k, domains)
    # A row that came over the network is handed on inside: copies are moved by somebody's links.
    within = token_bytes * copies * (1 - 1 / np.asarray(inside))
    return slower(within, token_bytes * trips * (1 - 1 / domains), links)
