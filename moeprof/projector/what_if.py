"""Question: what does each optimisation of the field buy a run, in time and in memory?

Each is the run with one thing changed, projected and estimated again: no table of gains. What a run
has already is taken away instead, and what it buys is told. Times are compared for the same number
of tokens, since some changes alter how many a step has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, total
from moeprof.projector.framework import Verdict
from moeprof.projector.memory import project
from moeprof.projector.setting import Amount, Setting
from moeprof.projector.step_time import StepEstimate, TimedRun, estimate
from moeprof.projector.step_time.rates import PLAIN, Tuning
from moeprof.specs.plan_checks import Batch
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

_FP8 = "float8_e4m3fn"
_TILES = 8


@dataclass(frozen=True)
class Effect:
    """What one optimisation buys.

    ``saved_s`` are seconds of the run's step, or of as many tokens, that it saves; ``saved_bytes``
    bytes of one device in all three pools, in the phase that needs most before and after, None
    where a size is not known. Negative: it costs.
    ``is_used``: the run has it, and both are what it would cost to be without. ``verdict`` is that
    of the changed run.
    """

    optimisation: str
    is_used: bool
    saved_s: float
    saved_bytes: int | None
    verdict: Verdict
    price: str


@dataclass(frozen=True)
class _Change:
    """A changed run. ``for_memory`` where its buffers differ from what it computes."""

    optimisation: str
    setting: Setting
    tuning: Tuning
    is_used: bool = False
    price: str = ""
    for_memory: Setting | None = None


def what_if(
    setting: Setting,
    tuning: Tuning = PLAIN,
    runs: Sequence[TimedRun] = (),
    projecting: Callable[[Setting], MemoryBreakdown] = project,
) -> tuple[Effect, ...]:
    """Effects of all optimisations that the run's framework, model and plan allow.

    ``runs`` are those whose steps were timed, ``projecting`` what gives a setting's memory.

    Raises:
        SpecError: the run itself cannot be estimated.
    """
    memory, time = projecting(setting), estimate(setting, tuning, runs)
    found = []
    for make in _MAKERS:
        for change in make(setting, tuning):
            try:
                _check(change.setting)
                after = projecting(change.for_memory or change.setting)
                found.append(_effect(change, memory, time, after, runs))
            except SpecError:
                continue  # the changed run cannot be
    return tuple(found)


def _check(setting: Setting) -> None:
    batch = Batch(
        sequence=setting.sequence,
        microbatches=setting.microbatches,
        schedule=setting.schedule,
        layers_per_stage=setting.layers_per_stage,
    )
    setting.program.check_plan(setting.plan, setting.model, None, batch)


def _effect(
    change: _Change,
    memory: MemoryBreakdown,
    time: StepEstimate,
    after: MemoryBreakdown,
    runs: Sequence[TimedRun],
) -> Effect:
    changed = estimate(change.setting, change.tuning, runs)
    same_tokens = time.seconds * time.tokens_per_s_per_device / changed.tokens_per_s_per_device
    sign = -1 if change.is_used else 1
    sizes = [_taken(each) for each in (memory, after)]
    saved_bytes = None if None in sizes else int(sign * (sizes[0] - sizes[1]))  # type: ignore[operator]
    return Effect(
        change.optimisation,
        change.is_used,
        sign * (time.seconds - same_tokens),
        saved_bytes,
        after.verdict,
        change.price,
    )


def _taken(memory: MemoryBreakdown) -> Amount | None:
    """What the phase that needs most takes of a device, in all pools; None: not known."""
    phase = memory.largest
    found = total((*phase.args, *phase.temp, *phase.outside))
    return None if memory.total_bytes is None else found


def _grouped_gemm(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    """Where what either costs is a question of operations and bytes."""
    kind = setting.strategy.kind
    if not setting.program.compares_products or not setting.model.experts:
        return
    if kind == "dense":
        grouped = replace(setting, strategy=parse_strategy("sparse-gmm"))
        name = "dropless: grouped GEMM instead of capacity"
        yield _Change(name, grouped, tuning, price="no tokens are dropped")
        return
    is_used = kind != "sparse-ragged-dot"
    other = "sparse-ragged-dot" if is_used else "sparse-gmm"
    changed = replace(setting, strategy=parse_strategy(other))
    yield _Change("grouped GEMM instead of ragged_dot", changed, tuning, is_used)


def _deepep(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    kind = setting.strategy.kind
    if setting.plan.expert == 1 or kind not in ("sparse-gmm", "sparse-gmm-deepep"):
        return
    if setting.hardware.vendor == "Google":
        return
    is_used = kind == "sparse-gmm-deepep"
    other = "sparse-gmm" if is_used else "sparse-gmm-deepep"
    changed = replace(setting, strategy=parse_strategy(other))
    price = "buffers of its own beside the pool"
    yield _Change("DeepEP instead of all-to-all", changed, tuning, is_used, price)


def _sync_free(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    """On level 3 buffers are sized for the worst case: no count comes back to the host.

    Primus warns of that level alone that it takes significantly more memory.
    """
    if not setting.program.launches_each_kernel or not setting.model.experts:
        return
    model = setting.model
    worst = min(float(setting.plan.expert), model.experts / model.top_k)
    for level in (1, 2, 3):
        if level <= tuning.sync_free:
            continue
        buffers = replace(setting, overload=worst) if level == 3 else None
        price = "buffers for the worst case" if buffers else ""
        changed = replace(tuning, sync_free=level)
        name = f"sync-free MoE, level {level}"
        yield _Change(name, setting, changed, price=price, for_memory=buffers)


def _overlap(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    can_overlap = setting.program.overlaps_exchange and setting.plan.expert > 1
    if can_overlap and setting.microbatches > 1:
        is_used = tuning.overlaps_exchange
        changed = replace(tuning, overlaps_exchange=not is_used)
        yield _Change("all-to-all beside 1F1B's other microbatch", setting, changed, is_used)


def _recompute(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    for policy in setting.program.compared_remats:
        if policy != setting.plan.remat.text:
            changed = replace(setting, plan=replace(setting.plan, remat=Remat(policy)))
            yield _Change(f"recompute {policy.replace(':', ' ')}", changed, tuning)


def _loss(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    if setting.program.smaller_loss == "fused":
        is_used = setting.has_fused_loss
        changed = replace(setting, has_fused_loss=not is_used)
        yield _Change("loss fusion", changed, tuning, is_used)
        return
    is_used = setting.vocab_tiling > 1
    changed = replace(setting, vocab_tiling=1 if is_used else _TILES)
    tiles = setting.vocab_tiling if is_used else _TILES
    yield _Change(f"loss in {tiles} tiles of the vocabulary", changed, tuning, is_used)


def _partition(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    """More chunks per stage, and fewer layers where the head is."""
    plan, layers = setting.plan, setting.model.layers
    if plan.pipeline == 1:
        return
    chunks = range(2, layers // plan.pipeline + 1)
    even = [v for v in chunks if layers % (plan.pipeline * v) == 0 and v > plan.virtual]
    schedule = {"1f1b": "interleaved", "gpipe": "circular"}.get(setting.schedule, setting.schedule)
    for virtual in even[:2]:
        changed = replace(setting, plan=replace(plan, virtual=virtual), schedule=schedule)
        yield _Change(f"{virtual} chunks of layers per stage", changed, tuning)
    each, left = divmod(layers, plan.pipeline)
    if setting.layers_per_stage is None and plan.virtual == 1 and not left and each > 1:
        spread = (each + 1, *(each for _ in range(plan.pipeline - 2)), each - 1)
        changed = replace(setting, layers_per_stage=spread)
        yield _Change("one layer less beside the head", changed, tuning)


def _context(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    plan = setting.plan
    for axis in ("data", "fsdp"):
        if getattr(plan, axis) % 2 == 0:
            halves = {axis: getattr(plan, axis) // 2, "context": plan.context * 2}
            changed = replace(setting, plan=replace(plan, **halves))
            if setting.program.keeps_global_batch or plan.pipeline > 1:
                changed = replace(changed, microbatches=2 * setting.microbatches)
            name = f"CP {plan.context * 2}, {axis} {getattr(plan, axis) // 2}"
            price = "keys and values go round a ring"
            if changed.microbatches == setting.microbatches:
                price += ", half the tokens per step"
            yield _Change(name, changed, tuning, price=price)
            return


def _experts_spread(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    plan = setting.plan
    for times, over in ((2, 1), (1, 2)):
        if plan.expert % over:
            continue
        degrees = {"expert": plan.expert * times // over}
        name = f"EP {degrees['expert']}"
        if not setting.program.folds_experts:
            if plan.fsdp % times:
                continue
            degrees["fsdp"] = plan.fsdp * over // times
            name += f", FSDP {degrees['fsdp']}"
        if setting.model.experts % degrees["expert"] == 0:
            changed = replace(plan, **degrees)  # type: ignore[arg-type]
            yield _Change(name, replace(setting, plan=changed), tuning)


def _fp8(setting: Setting, tuning: Tuning) -> Iterator[_Change]:
    if setting.hardware.fp8_flops_per_s is None or not setting.model.experts:
        return
    is_used = setting.precision.experts == _FP8
    formats = replace(setting.precision, experts=None if is_used else _FP8)
    changed = replace(setting, precision=formats)
    yield _Change("experts' products in fp8", changed, tuning, is_used, "accuracy of fp8")


_MAKERS: tuple[Callable[[Setting, Tuning], Iterator[_Change]], ...] = (
    _grouped_gemm,
    _deepep,
    _sync_free,
    _overlap,
    _fp8,
    _recompute,
    _loss,
    _partition,
    _context,
    _experts_spread,
)
