"""Question: how long does one layer take for one microbatch, forward, again, and backward?

A product takes the longer of its operations at the rate of its kind and its bytes at that of memory
(roofline: Williams et al. 2009). Element-wise work passes memory, in rows of [tokens, hidden] per
layer: two norms (read, write), two residual sums (two reads, a write): 10 forward and as many
backward; the activation between an expert's products: matrices rows of [rows, ffn] forward, twice
that backward.
"""

from __future__ import annotations

import numpy as np

from moeprof.projector.timing.exchange import exchange_s, permute_bytes
from moeprof.projector.timing.flops import (
    LayerKind,
    Work,
    head_work,
    kept_key_width,
    layer_work,
)
from moeprof.projector.timing.formats import item_bytes, peak_flops_per_s
from moeprof.projector.timing.ground import Ground, memory_bytes_per_s
from moeprof.projector.timing.links import gather_s
from moeprof.projector.timing.reals import Real
from moeprof.projector.timing.recompute import recomputed
from moeprof.projector.timing.routed_rows import NO_ROWS, Routed, routed_rows
from moeprof.projector.timing.rows import TimeRow

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
