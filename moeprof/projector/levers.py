"""Question: which change buys how much memory, where a run is near its limit or over it?

Every lever is the setting with one thing changed, projected again: no table of savings. Levers
that cost accuracy or drop tokens say so. How much more uneven the routing may become before the run
no longer fits is `fits_up_to_overload`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from moeprof.errors import SpecError
from moeprof.projector.accounts.megatron import CACHE_ROW, CACHE_SHARE
from moeprof.projector.breakdown import MemoryBreakdown, Row, StageBreakdown, Verdict, total
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting, degrees_of
from moeprof.projector.shares import buffer_factor
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.remat import FULL
from moeprof.specs.strategy import parse_strategy

_WIDE = "float32"
_NARROW = "bfloat16"
_TILES = 8


@dataclass(frozen=True)
class Lever:
    """One change: its text, what it buys inside the pool, and the verdict with it.

    ``setting`` is the changed one; ``price`` says what it costs besides.
    """

    change: str
    price: str
    saved_bytes: int
    verdict: Verdict
    setting: Setting


@dataclass(frozen=True)
class _Change:
    text: str
    price: str
    setting: Setting


def levers(breakdown: MemoryBreakdown) -> tuple[Lever, ...]:
    """What would buy memory, the change that turns the verdict first, then by bytes.

    Empty where sizes are unknown. Changes that buy nothing, or that the model or the plan does not
    allow, are left out.
    """
    if breakdown.inside_bytes is None:
        return ()
    found = []
    for change in _changes(breakdown.setting):
        try:
            after = project(change.setting)
        except SpecError:
            continue
        saved = _gain(breakdown, after)
        if saved is not None and saved > 0:
            found.append(Lever(change.text, change.price, saved, after.verdict, change.setting))
    order = {"fits": 0, "borderline": 1}
    return tuple(sorted(found, key=lambda one: (order.get(one.verdict, 2), -one.saved_bytes)))


def _gain(before: MemoryBreakdown, after: MemoryBreakdown) -> int | None:
    """Bytes of room gained: less inside the pool, or a larger pool."""
    if before.inside_bytes is None or after.inside_bytes is None:
        return None
    room = before.pool_bytes - before.inside_bytes
    return after.pool_bytes - after.inside_bytes - room


def _changes(setting: Setting) -> Iterator[_Change]:
    for make in _MAKERS:
        yield from make(setting)


def _buffers(setting: Setting) -> Iterator[_Change]:
    if not setting.model.experts or setting.world == "megatron":
        return
    if setting.strategy.kind == "dense":
        factor = setting.strategy.capacity_factor
        if factor is not None and factor > 1:
            smaller = replace(setting, strategy=parse_strategy("dense-cf1"))
            yield _Change("capacity factor 1", "drops tokens of experts above average", smaller)
        return
    if setting.world == "bundled":  # its buffers are those of the worst routing
        return
    now = float(buffer_factor(setting, degrees_of(setting)))
    for factor in (4.0, 2.0, 1.25):
        if factor < now:
            changed = replace(setting, ragged_buffer_factor=factor)
            price = f"drops rows of ranks with more than {factor:g}× an even share"
            yield _Change(f"ragged_buffer_factor {factor:g}", price, changed)
            return


def _exchange(setting: Setting) -> Iterator[_Change]:
    faster = {"sparse-ragged-dot": "sparse-gmm", "sparse-gmm": "sparse-gmm-deepep"}
    other = faster.get(setting.strategy.kind)
    if other is None or setting.world == "megatron" or setting.plan.expert == 1:
        return
    if setting.hardware.vendor == "Google":
        return  # ragged_dot has a kernel there, DeepEP none
    changed = replace(setting, strategy=parse_strategy(other))
    yield _Change(f"strategy {other}", "needs its kernels", changed)


def _loss(setting: Setting) -> Iterator[_Change]:
    if setting.world == "maxtext" and setting.vocab_tiling < _TILES:
        changed = replace(setting, vocab_tiling=_TILES)
        yield _Change(f"num_vocab_tiling {_TILES}", "smaller products of the head", changed)
    if setting.world == "megatron" and not setting.has_fused_loss:
        changed = replace(setting, has_fused_loss=True)
        yield _Change("fused loss", "needs TransformerEngine's loss", changed)


def _precision(setting: Setting) -> Iterator[_Change]:
    names = {
        "gradients": "grad_dtype",
        "first_moment": "mu_dtype",
        "second_moment": "nu_dtype",
    }
    for field, name in names.items():
        if DTYPE_BYTES[getattr(setting.precision, field)] == DTYPE_BYTES[_WIDE]:
            precision = replace(setting.precision, **{field: _NARROW})
            changed = replace(setting, precision=precision)
            yield _Change(f"{name} {_NARROW}", "coarser updates", changed)


def _recomputation(setting: Setting) -> Iterator[_Change]:
    if setting.plan.remat != FULL:
        changed = replace(setting, plan=replace(setting.plan, remat=FULL), recomputed_layers=None)
        yield _Change("remat full", "one more forward pass", changed)


def _offload(setting: Setting) -> Iterator[_Change]:
    prices = {"activations": "copies per layer", "optimizer": "copies per step"}
    for name, price in prices.items():
        if name not in setting.offload and setting.world == "maxtext":
            changed = replace(setting, offload=setting.offload | {name})
            yield _Change(f"offload of {name} to the host", price, changed)


def _plan(setting: Setting) -> Iterator[_Change]:
    """Another plan of as many devices."""
    plan = setting.plan
    if setting.world == "megatron":
        yield from _megatron_plan(setting)
        return
    if plan.expert % 2 == 0:
        changed = replace(plan, expert=plan.expert // 2, fsdp=plan.fsdp * 2)
        yield _with_plan(setting, changed, "more weights gathered over FSDP")
    if plan.fsdp % 2 == 0 and setting.model.experts % (plan.expert * 2) == 0:
        changed = replace(plan, expert=plan.expert * 2, fsdp=plan.fsdp // 2)
        yield _with_plan(setting, changed, "tokens travel further")
    if plan.fsdp % 2 == 0 and setting.sequence is not None and setting.world != "bundled":
        changed = replace(plan, context=plan.context * 2, fsdp=plan.fsdp // 2)
        yield _with_plan(setting, changed, "half the tokens per step, keys exchanged")


def _megatron_plan(setting: Setting) -> Iterator[_Change]:
    """Expert parallelism is within data parallelism there, and takes no devices of its own."""
    plan = setting.plan
    ranks = plan.data * plan.fsdp * plan.context * plan.tensor
    wider = replace(plan, expert=plan.expert * 2)
    fits_ranks = ranks % (wider.expert * plan.expert_tensor) == 0
    if setting.model.experts and setting.model.experts % wider.expert == 0 and fits_ranks:
        changed = replace(setting, plan=wider)
        yield _Change(f"EP {wider.expert}", "tokens travel further", changed)
    if plan.data % 2 == 0 and setting.sequence is not None:
        longer = replace(plan, context=plan.context * 2, data=plan.data // 2)
        changed, price = replace(setting, plan=longer), "half the tokens per step, keys exchanged"
        yield _Change(f"CP {longer.context}, DP {longer.data}", price, changed)


def _with_plan(setting: Setting, plan: object, price: str) -> _Change:
    changed = replace(setting, plan=plan)  # type: ignore[arg-type]
    new = changed.plan
    text = f"EP {new.expert}, FSDP {new.fsdp}"
    if new.context != setting.plan.context:
        text = f"CP {new.context}, FSDP {new.fsdp}"
    return _Change(text, price, changed)


def _fraction(setting: Setting) -> Iterator[_Change]:
    """The largest fraction of the device that leaves what lies outside its room."""
    if setting.world == "megatron":
        return
    bounds = project(setting)
    if bounds.outside_bytes is None:
        return
    fraction = int(100 * (1 - bounds.outside_bytes / bounds.device_bytes)) / 100
    if fraction > setting.mem_fraction:
        changed = replace(setting, mem_fraction=fraction)
        yield _Change(f"mem_fraction {fraction:g}", "no room left for more communicators", changed)


_MAKERS: tuple[Callable[[Setting], Iterator[_Change]], ...] = (
    _buffers,
    _exchange,
    _loss,
    _precision,
    _recomputation,
    _offload,
    _plan,
    _fraction,
)


# Up to which routing overload a run fits. Overload is the rows that the fullest rank receives over
# those of an even routing. Routed rows of memory are proportional to it, all others do not move, so
# every moment of every stage has one overload at which it fills the pool; the smallest of them
# counts.

STEP = 0.01
"""Overloads are told in hundredths, rounded down."""


def fits_up_to_overload(breakdown: MemoryBreakdown) -> float | None:
    """The largest overload at which args + temp stay within the pool.

    In JAX buffers are sized before the routing is known: an overload says what they are sized for.
    At most the worst routing there is, which is returned where even that fits. 0 where an even
    routing does not fit. None where routing changes no size (capacity buffers, a fixed
    ``ragged_buffer_factor``, no experts, one rank that has them all), or a size is unknown.
    """
    setting = breakdown.setting
    if breakdown.inside_bytes is None or not _moves(setting):
        return None
    now = float(buffer_factor(setting, degrees_of(setting)))
    limits = []
    for stage in breakdown.stages:
        room = _room(breakdown, stage)
        for peak in stage.peaks:
            rows = (*stage.args, *peak.rows)
            routed = _bytes([row for row in rows if row.is_routed])
            fixed = _bytes([row for row in rows if not row.is_routed])
            if fixed > room:
                return 0.0
            if routed:
                limits.append(now * (room - fixed) / routed)
    if not limits:
        return None
    largest = math.floor(min(limits) / STEP + 1e-9) * STEP
    worst = _worst(setting)
    if largest >= worst:
        return worst
    return round(largest, 2) if largest >= 1 else 0.0


def _moves(setting: Setting) -> bool:
    if not setting.model.experts or setting.ragged_buffer_factor is not None:
        return False
    is_routed = setting.world == "megatron" or setting.strategy.kind != "dense"
    return is_routed and _worst(setting) > 1  # at 1 no routing is uneven


def _room(breakdown: MemoryBreakdown, stage: StageBreakdown) -> float:
    """What args and temp may take: PyTorch's cache grows with them, and is no part of its pool."""
    others = [row for row in stage.outside if row.name != CACHE_ROW]
    if breakdown.setting.world != "megatron" or len(others) == len(stage.outside):
        return breakdown.pool_bytes
    return (breakdown.device_bytes - _bytes(others)) / (1 + CACHE_SHARE)


def _worst(setting: Setting) -> float:
    """The largest that a routing can be for the strategy's buffers.

    Megatron's hold what arrives: a token has at most min(E / EP, K) experts on a rank.
    """
    if setting.world == "megatron":
        model = setting.model
        return float(min(setting.plan.expert, max(model.experts / model.top_k, 1)))
    return float(buffer_factor(replace(setting, overload=None), degrees_of(setting)))


def _bytes(rows: list[Row]) -> float:
    size = total(rows)
    assert size is not None
    return float(size)
