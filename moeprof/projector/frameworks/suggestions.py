"""Question: which changes of a run may buy memory, as far as frameworks have them in common?

A change is the setting with one thing changed; `moeprof.projector.levers` projects each. Changes
that cost accuracy or drop tokens say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from moeprof.projector.setting import Setting, degrees_of
from moeprof.projector.shares import buffer_factor
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import FULL
from moeprof.specs.strategy import parse_strategy

_WIDE = "float32"
_NARROW = "bfloat16"


@dataclass(frozen=True)
class Change:
    """A changed run: what is changed, and what that costs besides."""

    text: str
    price: str
    setting: Setting


def smaller_capacity(setting: Setting) -> Iterator[Change]:
    """Capacity buffers of an even share."""
    factor = setting.strategy.capacity_factor
    if setting.model.experts and factor is not None and factor > 1:
        smaller = replace(setting, strategy=parse_strategy("dense-cf1"))
        yield Change("capacity factor 1", "drops tokens of experts above average", smaller)


def smaller_ragged_buffers(setting: Setting) -> Iterator[Change]:
    """Dropless buffers below the worst routing."""
    if not setting.model.experts or setting.strategy.kind == "dense":
        return
    now = float(buffer_factor(setting, degrees_of(setting)))
    for factor in (4.0, 2.0, 1.25):
        if factor < now:
            changed = replace(setting, ragged_buffer_factor=factor)
            price = f"drops rows of ranks with more than {factor:g}× an even share"
            yield Change(f"ragged_buffer_factor {factor:g}", price, changed)
            return


def other_exchange(setting: Setting) -> Iterator[Change]:
    """A faster exchange, which holds less."""
    faster = {"sparse-ragged-dot": "sparse-gmm", "sparse-gmm": "sparse-gmm-deepep"}
    other = faster.get(setting.strategy.kind)
    if other is None or setting.plan.expert == 1:
        return
    if setting.hardware.vendor == "Google":
        return  # ragged_dot has a kernel there, DeepEP none
    changed = replace(setting, strategy=parse_strategy(other))
    yield Change(f"strategy {other}", "needs its kernels", changed)


def other_precision(setting: Setting) -> Iterator[Change]:
    """Narrower gradients and moments."""
    names = {
        "gradients": "grad_dtype",
        "first_moment": "mu_dtype",
        "second_moment": "nu_dtype",
    }
    for field, name in names.items():
        if DTYPE_BYTES[getattr(setting.precision, field)] == DTYPE_BYTES[_WIDE]:
            precision = replace(setting.precision, **{field: _NARROW})
            changed = replace(setting, precision=precision)
            yield Change(f"{name} {_NARROW}", "coarser updates", changed)


def recomputation(setting: Setting) -> Iterator[Change]:
    """All layers recomputed."""
    if setting.plan.remat != FULL:
        changed = replace(setting, plan=replace(setting.plan, remat=FULL), recomputed_layers=None)
        yield Change("remat full", "one more forward pass", changed)


def other_plan(setting: Setting) -> Iterator[Change]:
    """Another plan of as many devices, where experts have devices of their own."""
    plan = setting.plan
    if plan.expert % 2 == 0:
        changed = replace(plan, expert=plan.expert // 2, fsdp=plan.fsdp * 2)
        yield _with_plan(setting, changed, "more weights gathered over FSDP")
    if plan.fsdp % 2 == 0 and setting.model.experts % (plan.expert * 2) == 0:
        changed = replace(plan, expert=plan.expert * 2, fsdp=plan.fsdp // 2)
        yield _with_plan(setting, changed, "tokens travel further")
    is_alone = "context" in setting.program.missing_axes
    if plan.fsdp % 2 == 0 and setting.sequence is not None and not is_alone:
        changed = replace(plan, context=plan.context * 2, fsdp=plan.fsdp // 2)
        yield _with_plan(setting, changed, "half the tokens per step, keys exchanged")


def _with_plan(setting: Setting, plan: ParallelPlan, price: str) -> Change:
    changed = replace(setting, plan=plan)
    text = f"EP {plan.expert}, FSDP {plan.fsdp}"
    if plan.context != setting.plan.context:
        text = f"CP {plan.context}, FSDP {plan.fsdp}"
    return Change(text, price, changed)
