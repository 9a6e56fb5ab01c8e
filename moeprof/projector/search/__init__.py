"""Question: which plans fit, which of them is best, and why do the others not do?

Legal plans are projected all at once for each strategy and rematerialisation: memory by
`project_many`, time by `step_seconds`. Those that fit with room come first, then borderline ones.
Then the order is that of time or of fit:

time  tokens per second, and where these agree to a thousandth free memory. Where rates are
      measured or calibrated for the framework and device, or where it is asked for.
fit   what a plan gives up to fit: least recomputation first, in hundredths of the forward pass;
      then fewest devices that wait for each other: those that share a sequence, times the fast
      domains that its experts are spread over; then what it gains, most tokens of a microbatch
      per device that shares them; then free memory. Nothing in it is a rate.

Of plans that only trade replicas for context parallelism, at the same work of a device, the best is
shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError
from moeprof.projector.batches import Fit, Numbers, fit, largest_batches
from moeprof.projector.memory import project
from moeprof.projector.search.space import RULES, Space, broken_rule, plans
from moeprof.projector.setting import Degrees, Setting
from moeprof.projector.step_time import (
    TimedRun,
    bands_of,
    basis_of,
    step_seconds,
    tokens_per_s_per_device,
)
from moeprof.projector.step_time.layer_time import done_again
from moeprof.projector.step_time.rates import PLAIN, Tuning, ground_of
from moeprof.specs.plan import SHORT, ParallelPlan
from moeprof.specs.strategy import Strategy
from moeprof.tell import Tell, unheard

NOT_INSIDE = "do not fit inside the pool"
NOT_OUTSIDE = "need too much beside the pool"
NOT_ON_HOST = "need more memory of a host than there is"
NO_SIZE = "are of unknown size"
NO_PEERS = "have no expert peers for DeepEP"
NO_TIME = "send data over a network of unknown speed"


@dataclass(frozen=True)
class Found:
    """One plan that fits.

    ``margin`` is the share of the pool that stays free; ``is_borderline`` where the error of the
    account leaves the verdict open, or within 5 % of the limit.
    """

    setting: Setting
    args_bytes: int
    temp_bytes: int
    outside_bytes: int
    margin: float
    is_borderline: bool
    seconds: float
    tokens_per_s_per_device: float


Order = Literal["time", "fit"]
ORDERS: tuple[Order, ...] = ("time", "fit")


@dataclass(frozen=True)
class SearchResult:
    """``found`` are the best, in order; ``fitting`` counts all that fit, ``considered`` all plans.

    ``order`` is what they are in the order of; ``sure`` are those of the plans with room that are
    fastest at the slow end of their band, one more than ``found``, none in an order of fit.
    ``rejected`` gives reasons with how many plans each ruled out; they and ``fitting`` add up to
    ``considered``.
    ``nearest`` is the plan that misses by least, where none fits.
    """

    space: Space
    considered: int
    fitting: int
    borderline: int
    rejected: tuple[tuple[str, int], ...]
    found: tuple[Found, ...]
    nearest: Found | None
    order: Order = "time"
    sure: tuple[Found, ...] = ()

    @property
    def surest(self) -> Found | None:
        """The first of ``sure``; None where that is the first of all too."""
        first = next(iter(self.sure), None)
        return None if first in self.found[:1] else first


@dataclass(frozen=True)
class _Evaluated:
    """All legal plans of one strategy and rematerialisation, a number per plan.

    ``again`` is the share of the forward pass that is done again, ``tokens`` those of a microbatch
    per device that shares them, ``spread`` those devices times the domains of its experts,
    ``sure_speed`` the speed at the slow end of the band.
    """

    setting: Setting
    degrees: Degrees
    fit: Fit
    seconds: Numbers
    speed: Numbers
    sure_speed: Numbers
    again: Numbers
    tokens: Numbers
    spread: Numbers


def search(
    space: Space,
    top: int = 10,
    tuning: Tuning = PLAIN,
    *,
    runs: Sequence[TimedRun] = (),
    order: Order | None = None,
    tell: Tell = unheard,
) -> SearchResult:
    """The best plans of a space.

    Args:
        space: what is searched.
        top: how many plans to give.
        tuning: what every plan does about time.
        runs: runs of the user's whose steps were timed.
        order: what to put the plans in the order of; None: of time where that is measured or
            calibrated for the framework and device, else of fit.
        tell: hears of every strategy and remat that is projected.

    Raises:
        SpecError: the base setting has no sequence, or there is no plan at all.
    """
    if space.base.sequence is None:
        raise SpecError("search: expected a sequence length, found none. Give it.")
    degrees = plans(space)
    count = len(degrees.data)  # type: ignore[arg-type]
    if not count:
        raise SpecError(
            f"search: {space.devices} devices cannot be laid out with {_said(space)} alone: "
            f"expected degrees that divide {space.devices} and whose product it can be."
        )
    kinds = len(space.strategies) * len(space.remats)
    broken = broken_rule(space, degrees)
    reasons = dict.fromkeys(RULES, 0)
    for number, rule in enumerate(RULES):
        reasons[rule] = int((broken == number).sum()) * kinds
    legal = Degrees(*(np.asarray(values)[broken < 0] for values in degrees))
    evaluated = []
    for place, one in enumerate(_evaluated(space, legal, tuning, runs), start=1):
        evaluated.append(one)
        tell(place, kinds)
    alone = int((np.asarray(legal.expert) == 1).sum())
    reasons[NO_PEERS] = alone * sum(map(_needs_peers, space.strategies)) * len(space.remats)
    for reason, is_rejected in _rejections(evaluated):
        reasons[reason] = reasons.get(reason, 0) + is_rejected
    lacking: list[Found] = []

    def suffices(one: Found) -> bool:
        """Whether a host does; its memory is of one plan at a time, so no others are asked."""
        if one.setting.host_memory_bytes is not None and project(one.setting).breaks_host:
            lacking.append(one)
            return False
        return True

    fitting = sum(int(_is_ranked(one).sum()) for one in evaluated)
    borderline = sum(int((_is_ranked(one) & one.fit.is_borderline).sum()) for one in evaluated)
    chosen_order = order or ("time" if basis_of(space.base, runs).ranks else "fit")
    ranked = _ranked(evaluated, top, chosen_order, suffices)
    found = tuple(ranked.values())
    fitting -= len(lacking)
    borderline -= sum(one.is_borderline for one in lacking)
    reasons[NOT_ON_HOST] = len(lacking)
    return SearchResult(
        space,
        count * kinds,
        fitting,
        borderline,
        tuple((reason, n) for reason, n in reasons.items() if n),
        found,
        None if fitting else _nearest(evaluated),
        chosen_order,
        tuple(filter(suffices, _sure(evaluated, ranked))) if chosen_order == "time" else (),
    )


def _said(space: Space) -> str:
    allowed, missing = space.allowed, space.base.program.missing_axes
    return " ".join(
        f"--{short} {','.join(map(str, sorted(allowed[axis]))) or 'none'}"
        for short, axis in SHORT.items()
        if axis in allowed and axis not in missing
    )


def setting_at(setting: Setting, degrees: Degrees, place: int) -> Setting:
    """The setting of one of many plans."""
    values = {name: int(np.asarray(v)[place]) for name, v in degrees._asdict().items()}
    batch = {name: values.pop(name) for name in ("pdbs", "microbatches", "sequence")}
    plan = ParallelPlan(**values, remat=setting.plan.remat)
    return replace(setting, plan=plan, **batch)  # type: ignore[arg-type]


def _evaluated(
    space: Space, degrees: Degrees, tuning: Tuning, runs: Sequence[TimedRun]
) -> Iterator[_Evaluated]:
    with_peers = Degrees(*(v[np.asarray(degrees.expert) > 1] for v in map(np.asarray, degrees)))
    for strategy, remat in itertools.product(space.strategies, space.remats):
        usable = with_peers if _needs_peers(strategy) else degrees
        if len(usable.data):  # type: ignore[arg-type]
            base = replace(
                space.base, strategy=strategy, plan=replace(space.base.plan, remat=remat)
            )
            chosen = usable
            arena = space.arena.get((strategy.name, remat.text), 1.0)
            if space.global_batch is None and space.pdbs is None:
                chosen = usable._replace(
                    pdbs=largest_batches(base, usable, leaves_room=space.leaves_room, arena=arena)
                )
            seconds = np.asarray(step_seconds(base, chosen, tuning, runs), dtype=np.float64)
            speed = np.asarray(tokens_per_s_per_device(chosen, seconds))
            ground = ground_of(base, chosen, tuning)
            sharing = np.asarray(chosen.tensor * chosen.pipeline, dtype=np.float64)
            peers = ground.groups.exchange
            yield _Evaluated(
                base,
                chosen,
                fit(base, chosen, leaves_room=space.leaves_room, arena=arena),
                seconds,
                speed,
                speed / np.asarray(bands_of(base, chosen, runs)[1]),
                np.broadcast_to(np.asarray(done_again(ground), dtype=np.float64), speed.shape),
                np.asarray(ground.tokens / sharing, dtype=np.float64),
                sharing * chosen.context * np.ceil(np.asarray(peers.size) / peers.inside),
            )


def _needs_peers(strategy: Strategy) -> bool:
    """DeepEP is an exchange: without expert peers there is nothing to run."""
    return strategy.kind == "sparse-gmm-deepep"


def _is_ranked(one: _Evaluated) -> npt.NDArray[np.bool_]:
    return (one.fit.has_room | one.fit.is_borderline) & np.isfinite(one.seconds)


def _rejections(evaluated: list[_Evaluated]) -> Iterator[tuple[str, int]]:
    for one in evaluated:
        yield NO_SIZE, int(one.fit.is_unknown.sum())
        yield NOT_OUTSIDE, int(one.fit.is_outside.sum())
        yield NOT_INSIDE, int((one.fit.is_oom & ~one.fit.is_outside).sum())
        fits = one.fit.has_room | one.fit.is_borderline
        yield NO_TIME, int((fits & ~np.isfinite(one.seconds)).sum())


def _keys(one: _Evaluated, order: Order) -> tuple[Numbers, ...]:
    """What is sorted by, least first, from the last key to the first."""
    near = one.fit.is_borderline.astype(np.float64)
    if order == "time":
        return (-one.fit.margin, -_to_a_thousandth(one.speed), near)
    return (-one.fit.margin, -one.tokens, one.spread, np.round(100 * one.again), near)


def _ranked(
    evaluated: list[_Evaluated], top: int, order: Order, suffices: Callable[[Found], bool]
) -> dict[_Work, Found]:
    """The best by what a device does in them, in order."""
    seen: dict[_Work, Found] = {}
    if not evaluated:
        return seen
    owner, place = _places(evaluated)
    ranked = np.concatenate([_is_ranked(one) for one in evaluated])
    keys = zip(*(_keys(one, order) for one in evaluated), strict=True)
    chosen = np.flatnonzero(ranked)
    places = np.lexsort([np.concatenate(key)[chosen] for key in keys])
    for index in chosen[places]:
        one, at = evaluated[owner[index]], int(place[index])
        work = (int(owner[index]), *_work(one.degrees, at))
        if work in seen:
            continue
        if len(seen) == top:
            break
        found = _found(one, at)
        if suffices(found):
            seen[work] = found
    return seen


def _places(evaluated: list[_Evaluated]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of all plans in one row: which of ``evaluated`` each is of, and its place there."""
    counts = np.array([len(one.speed) for one in evaluated], dtype=np.int64)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(len(counts)), counts), np.arange(counts.sum()) - first


_Work = tuple[int, ...]


def _sure(evaluated: list[_Evaluated], ranked: Mapping[_Work, Found]) -> Iterator[Found]:
    """The plans with room that are fastest at the slow end of their band, the first of equals."""
    sure = [np.where(_is_ranked(one) & one.fit.has_room, one.sure_speed, -1) for one in evaluated]
    owner, place = _places(evaluated)
    speed = np.concatenate(sure) if sure else np.zeros(0)
    seen: set[_Work] = set()
    for index in np.argsort(-speed, kind="stable"):
        if speed[index] < 0 or len(seen) > len(ranked):
            return
        one, at = evaluated[owner[index]], int(place[index])
        work = (int(owner[index]), *_work(one.degrees, at))
        if work not in seen:
            seen.add(work)
            yield ranked.get(work) or _found(one, at)


def _nearest(evaluated: list[_Evaluated]) -> Found | None:
    best: Found | None = None
    for one in evaluated:
        margin = np.where(np.isfinite(one.fit.margin), one.fit.margin, -np.inf)
        at = int(np.argmax(margin))
        if np.isfinite(margin[at]) and (best is None or margin[at] > best.margin):
            best = _found(one, at)
    return best


def _found(one: _Evaluated, at: int) -> Found:
    shared = replace(one.setting, mem_fraction=float(one.fit.fraction[at]))
    return Found(
        setting_at(shared, one.degrees, at),
        int(one.fit.args[at]),
        int(one.fit.temp[at]),
        int(one.fit.outside[at]),
        float(one.fit.margin[at]),
        bool(one.fit.is_borderline[at]),
        float(one.seconds[at]),
        float(one.speed[at]),
    )


def _work(degrees: Degrees, at: int) -> _Work:
    """What a device does: the same where plans only trade replicas for context parallelism."""
    values = {name: int(np.asarray(v)[at]) for name, v in degrees._asdict().items()}
    spread = values.pop("data") * values.pop("fsdp") * values["context"]
    tokens = values.pop("pdbs") * values.pop("sequence") // values.pop("context")
    return (spread, tokens, *values.values())


def _to_a_thousandth(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Equal numbers for values that differ by less than about a thousandth."""
    return np.round(np.log(np.maximum(values, 1e-300)) * 1000)
