"""Question: how long does one layer take for one microbatch, forward, again, and backward?

A product takes the longer of its operations at the rate of its kind and its bytes at that of memory
(roofline: Williams et al. 2009). Element-wise work passes memory, in rows of [tokens, hidden] per
layer: two norms (read, write), two residual sums (two reads, a write): 10 forward and as many
backward; the activation between an expert's products: matrices rows of [rows, ffn] forward, twice
that backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from moeprof.projector.setting import Count, Degrees, Real, Setting
from moeprof.projector.shares import NO_ROWS, Routed, routed_rows
from moeprof.projector.step_time.flops import (
    LayerKind,
    Work,
    head_work,
    kept_key_width,
    layer_work,
)
from moeprof.projector.step_time.rates import (
    SYNCS,
    Ground,
    Links,
    TimeRow,
    all_to_all_s,
    gather_s,
    item_bytes,
    memory_bytes_per_s,
    peak_flops_per_s,
    slower,
)
from moeprof.specs.remat import Remat

_NORMS_AND_SUMS = 10


def layer_parts(ground: Ground, kind: LayerKind) -> list[TimeRow]:
    """All parts of one layer."""
    routed = NO_ROWS
    if kind == "moe":
        routed = routed_rows(ground.setting, ground.degrees, ground.tokens)
    works = layer_work(ground.setting, ground.degrees, ground.tokens, routed, kind)
    parts = [_product_part(ground, work) for work in works]
    core_s = sum(part.seconds for part in parts if part.name == "attention core")
    parts.append(_elementwise(ground, routed, kind))
    if kind == "moe":
        parts.append(_permute(ground, routed))
        parts.append(_exchange(ground, routed))
    return [*parts, _tensor(ground), _context(ground, core_s)]


def head_parts(ground: Ground) -> list[TimeRow]:
    """The logits and the loss of one microbatch.

    The loss passes the logits in float32: written, read, and its gradient written and read.
    """
    setting, degrees = ground.setting, ground.degrees
    again = float(setting.vocab_tiling > 1)
    part = _product_part(ground, head_work(setting, degrees, ground.tokens), again)
    passes = 2 if setting.has_fused_loss else 4
    moved = passes * 4 * ground.tokens * setting.model.vocab / degrees.tensor
    seconds = moved / memory_bytes_per_s(ground)
    loss = TimeRow(
        "loss",
        "memory passes",
        seconds,
        0.0,
        f"{passes} passes · tokens · vocab · 4 B / memory",
        ground.rates.source,
        ground.rates.confidence,
    )
    return [part, loss]


def done_again(ground: Ground) -> Real:
    """Operations that the backward pass does again, over those of the forward pass."""
    again: Real = 0.0
    forward: Real = 0.0
    model = ground.setting.model
    counts: dict[LayerKind, int] = {"dense": model.dense_layers, "moe": model.moe_layers}
    for kind, layers in counts.items():
        if not layers:
            continue
        routed = NO_ROWS
        if kind == "moe":
            routed = routed_rows(ground.setting, ground.degrees, ground.tokens)
        for work in layer_work(ground.setting, ground.degrees, ground.tokens, routed, kind):
            share = recomputed(ground.setting.plan.remat, work.part, work.name)
            again = again + layers * work.flops * share
            forward = forward + layers * work.flops
    return ground.again * again / forward


def _product_part(ground: Ground, work: Work, again: Real | None = None) -> TimeRow:
    setting, rates = ground.setting, ground.rates
    is_expert = work.name == "routed experts"
    dtype = (is_expert and setting.precision.experts) or setting.precision.compute
    rate = {"gemm": rates.gemm, "grouped": rates.grouped, "attention": rates.attention}
    flops_s = work.flops / (peak_flops_per_s(setting, dtype) * rate[work.engine])
    seconds = np.maximum(flops_s, work.memory_bytes / memory_bytes_per_s(ground))
    if again is None:
        again = ground.again * recomputed(setting.plan.remat, work.part, work.name)
    passes = 1 + again + work.backward
    formula = f"{work.formula} / ({rate[work.engine]:g} of the peak), {work.backward:g}× backward"
    return TimeRow(
        work.name, "compute", seconds * passes, 0.0, formula, rates.source, rates.confidence
    )


def _elementwise(ground: Ground, routed: Routed, kind: LayerKind) -> TimeRow:
    setting, model = ground.setting, ground.setting.model
    norms_again = ground.again * recomputed(setting.plan.remat, "norms")
    activation_again = ground.again * recomputed(setting.plan.remat, "activation")
    if kind == "dense":
        wide = model.dense_ffn * ground.tokens
    else:
        wide = model.shared_width * ground.tokens + model.moe_ffn * routed.buffer
    rows = _NORMS_AND_SUMS * model.hidden * ground.tokens * (2 + norms_again)
    rows = rows + model.feedforward_matrices * wide * (3 + activation_again)
    moved = rows / ground.degrees.tensor * item_bytes(setting)
    return TimeRow(
        "norms, sums and activations",
        "memory passes",
        moved / memory_bytes_per_s(ground),
        0.0,
        "(10 · tokens · hidden + matrices · rows · ffn) · bytes / memory",
        "two norms, two residual sums and the activation of a pre-norm layer",
        "medium",
    )


def _permute(ground: Ground, routed: Routed) -> TimeRow:
    forward, backward = permute_bytes(ground.setting, ground.degrees, routed)
    again = ground.again * recomputed(ground.setting.plan.remat, "permute")
    moved = forward * (1 + again) + backward
    return TimeRow(
        "permutes and masks",
        "memory passes",
        moved / memory_bytes_per_s(ground),
        0.0,
        "passes · buffer rows · hidden · bytes / memory",
        "arrays of MaxText's layers/moe.py (ROCm/maxtext @1c5729088)",
        "medium",
    )


def _exchange(ground: Ground, routed: Routed) -> TimeRow:
    once = exchange_s(ground, routed)
    again = ground.again * recomputed(ground.setting.plan.remat, "exchange")
    return TimeRow(
        "dispatch and combine",
        "exchange",
        once * (2 + again),
        0.0,
        "2 · rows to other ranks · hidden · bytes / link, forward, again and backward",
        ground.rates.source,
        ground.rates.confidence,
    )


def _tensor(ground: Ground) -> TimeRow:
    """Two sums over tensor peers per pass: after attention and after the feed-forward."""
    setting = ground.setting
    whole = ground.tokens * setting.model.hidden * item_bytes(setting)
    passes = 2 + ground.again * recomputed(setting.plan.remat, "tensor sums")
    seconds = 2 * 2 * gather_s(whole, ground.groups.tensor, ground.links) * passes
    return TimeRow(
        "tensor-parallel sums",
        "collectives",
        seconds,
        0.0,
        "2 all-reduces of [tokens, hidden] per pass",
        "Shoeybi et al. 2019, Megatron-LM, arXiv 1909.08053, section 3",
        ground.rates.confidence,
    )


def _context(ground: Ground, core_s: Real) -> TimeRow:
    """Keys and values of the other context peers go round a ring, hidden behind the core."""
    setting, degrees = ground.setting, ground.degrees
    whole = ground.tokens * degrees.context * kept_key_width(setting.model) * item_bytes(setting)
    again = ground.again * recomputed(setting.plan.remat, "attention core")
    ring = gather_s(whole / degrees.tensor, ground.groups.context, ground.links) * (3 + again)
    return TimeRow(
        "context-parallel keys and values",
        "collectives",
        np.maximum(ring - core_s, 0.0),
        np.minimum(ring, core_s),
        "(context − 1) · tokens · key and value width · bytes / link; backward twice",
        "Liu et al. 2023, Ring Attention, arXiv 2310.01889",
        ground.rates.confidence,
    )


# Dispatch and combine. Bytes that a rank sends in one dispatch, itself included (a combine sends as
# many back):
#
# dense-cfX     experts · capacity rows of each sequence: tokens · slots / sequence
# sparse        one row per token and expert: tokens · top_k
# -deepep       one row per token and rank that holds one of its experts
#
# With K experts of E chosen evenly and E/G of them in each of G places, a token needs
#
#     G · (1 − Π_{i<K} (E − E/G − i) / (E − i))
#
# places (hypergeometric). DeepEP sends one copy to each *domain* over the network and one to each
# rank inside (deepseek-ai/DeepEP, README, "Internode").
#
# Memory passes, in rows of the buffer read or written (lists of MaxText's layers/moe.py with DeepEP
# and grouped GEMM, ROCm/maxtext @1c5729088): sparse forward 5 (zeros, local permute, unsort),
# backward 8; DeepEP forward 4 (fan-out, unsort, fan-in), backward 9. Rows of tokens · top_k: sparse
# 8 each way (repeat, sort, unsort, sum). Capacity path: the transposes beside each all-to-all, 4
# each.


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


# Which share of a component's forward work is done again in the backward pass. A product is done
# again unless its result was kept, on the device or in the host's memory. With flash attention the
# core needs its result kept (``context``) as well as its inputs. ``selective`` does again what its
# modules hold and nothing else. What is outside the layers (the head) is done again only where its
# loss is tiled, since each tile's logits are made again for their gradient.

_KEEPERS: Mapping[str, tuple[str, ...]] = {
    "query": ("query_proj",),
    "key and value": ("key_proj", "value_proj"),
    "attention output": ("out_proj",),
    "attention core": ("context",),
    "feed-forward in": ("mlpwi_0", "mlpwi_1"),
    "feed-forward out": ("mlpwo",),
}
"""Part of a layer -> names that spare its recomputation if all of them are kept."""
_MODULES: Mapping[str, frozenset[str]] = {
    "core_attn": frozenset({"attention core"}),
    "mla_up_proj": frozenset({"query", "key and value"}),
    "moe_act": frozenset({"activation"}),
    "mlp": frozenset({"dense feed-forward"}),
    "moe": frozenset({"router", "routed experts", "shared expert", "permute", "exchange"}),
    "layernorm": frozenset({"norms"}),
    "shared_experts": frozenset({"shared expert"}),
}
"""Module of Megatron-LM -> parts and components that it does again."""


def recomputed(remat: Remat, part: str, component: str = "") -> float:
    """1 where a part of a layer is done again, else 0; ``component`` is what it belongs to."""
    if remat.text == "none":
        return 0.0
    if remat.recomputed_modules:
        again = frozenset[str]().union(*(_MODULES[name] for name in remat.recomputed_modules))
        return float(part in again or component in again)
    kept = {*remat.saved_names, *remat.offloaded_names}
    names = _KEEPERS.get(part)
    return float(names is None or not kept.issuperset(names))


# What a layer waits for its host. A JAX program is launched as a whole and its shapes are static:
# the host waits for nothing and its launches run ahead. PyTorch launches kernel by kernel, and a
# dynamic MoE layer waits for counts from the device (ROCm/rocm-blogs, primus-moe-package,
# "Sync-Free MoE"); each wait drains the queue, which takes about one trip: launch, kernel, copy,
# and the launches after it. How long a trip takes differs between hosts and no source states it:
# 0.1 ms and 10 µs per launch of about 60 kernels per MoE layer and pass (half for a dense one) are
# assumed.

SYNC_S = 1e-4
LAUNCH_S = 1e-5
_KERNELS = {"dense": 30, "moe": 60}


def host_row_list(ground: Ground, kind: LayerKind, device_s: Real) -> list[TimeRow]:
    """Waits and launches of one layer and microbatch; none in JAX."""
    if not ground.setting.program.launches_each_kernel:
        return []
    again = ground.again * recomputed(ground.setting.plan.remat, "norms")
    launches = _KERNELS[kind] * (3 + again) * LAUNCH_S
    rows = [
        TimeRow(
            "launches",
            "host",
            np.maximum(launches - device_s, 0.0),
            np.minimum(launches, device_s),
            f"{_KERNELS[kind]} kernels · passes · 10 µs, as far as the device is done before",
            "assumed",
            "low",
        )
    ]
    if kind == "moe":
        syncs = SYNCS[ground.tuning.sync_free]
        routes_again = ground.again * recomputed(ground.setting.plan.remat, "exchange")
        seconds = syncs * SYNC_S * (1 + routes_again)
        formula = f"{syncs} waits per MoE layer, forward and again · 0.1 ms"
        rows.append(
            TimeRow("waits for the device", "host", seconds, 0.0, formula, "assumed", "low")
        )
    return rows
