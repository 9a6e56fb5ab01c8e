"""Question: which plans fit, with how large a batch at most, and which batches are worth showing?

Memory never falls as the batch of a device (pdbs) grows, so the largest that fits is found by
bisection (of one setting, or of many plans at once), or by two evaluations of many batches at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.framework import BORDERLINE, doubtful_bytes
from moeprof.projector.memory import PlanSizes, project_many
from moeprof.projector.setting import Degrees, Setting, degrees_of
from moeprof.specs.plan import ALL_AXES

MOST_PDBS = 256
"""No batch above this is tried for one of many plans."""

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Fit(NamedTuple):
    """Memory of each plan, in bytes, and what becomes of it.

    Bytes are those of the step. ``margin`` is the share of the pool that stays free in the phase
    that needs most, negative where it does not do; NaN where the step's size is not known and no
    other phase is out of memory. ``fraction`` of the device is XLA's. ``doubt`` is how large a
    margin must be for a verdict that is not borderline, by the error of the step's account.
    """

    args: Numbers
    temp: Numbers
    outside: Numbers
    margin: Numbers
    fraction: Numbers
    doubt: Numbers
    is_outside: Mask
    """Too much beside the pool."""
    is_other: Mask
    """Another phase than the step needs most."""

    @property
    def has_room(self) -> Mask:
        """Verdict ``fits``."""
        return (self.margin > self.doubt) & ~self.is_outside

    @property
    def is_borderline(self) -> Mask:
        """Verdict ``borderline``."""
        return (np.abs(self.margin) <= self.doubt) & ~self.is_outside

    @property
    def is_oom(self) -> Mask:
        """Verdict ``oom``."""
        return self.is_outside | (self.margin < -self.doubt)

    @property
    def is_unknown(self) -> Mask:
        """No verdict."""
        return np.isnan(self.margin)


def fit(
    setting: Setting, degrees: Degrees, *, leaves_room: bool = False, arena: float = 1.0
) -> Fit:
    """What each plan needs, and whether that is there.

    ``leaves_room``: where the setting's fraction leaves too little beside the pool, XLA gets less,
    in whole hundredths. ``arena``: a factor on XLA's arena that a run showed.
    """
    sizes = project_many(setting, degrees)
    temp = np.rint(sizes.temp * arena)
    sizes = sizes._replace(temp=temp, library_temp=np.maximum(temp, sizes.library_temp))
    device = setting.hardware.hbm_bytes
    fraction = np.full(sizes.args.shape, setting.mem_fraction)
    if leaves_room and setting.program.has_pool:
        left = np.floor(100 * (1 - np.nan_to_num(sizes.outside) / device)) / 100
        fraction = np.where(left > 0, np.minimum(fraction, left), fraction)
    pool = np.floor(device * fraction)
    if not setting.program.has_pool:  # PyTorch's allocator takes what others leave
        pool = np.maximum(device - sizes.outside, 0)
    margin = _margin(pool, sizes.args + sizes.temp)
    is_known = ~np.isnan(margin + sizes.outside)
    is_outside = is_known & (sizes.outside > device - pool)
    doubt = _doubt(setting, degrees, sizes, np.where(pool > 0, pool, 1))
    if not setting.program.has_pool:
        pool = np.maximum(device - sizes.other_outside, 0)
    other = np.where(np.isfinite(sizes.other_inside), _margin(pool, sizes.other_inside), np.inf)
    is_other = np.where(is_known, _over(setting, sizes) > 0, other < -BORDERLINE)
    is_near = np.abs(margin) <= doubt  # then another phase with more room leaves it open
    of_other = np.where(is_near & (other >= -BORDERLINE), np.abs(other), 0)
    doubt = np.where(is_other, np.maximum(of_other, BORDERLINE), doubt)
    margin = np.where(is_other, other, np.where(is_known, margin, np.nan))
    of_step = (sizes.args, sizes.temp, sizes.outside)
    return Fit(*of_step, margin, fraction, doubt, is_outside, is_other)


def _doubt(setting: Setting, degrees: Degrees, sizes: PlanSizes, pool: Numbers) -> Numbers:
    """The share of the pool by which each plan's size is not sharp."""
    program, doubt = setting.program, np.zeros_like(pool)
    values = {axis: np.asarray(getattr(degrees, axis)) for axis in ALL_AXES}
    is_far = math.prod(values[axis] for axis in program.axes) > setting.hardware.slice_devices
    is_plain = np.asarray(program.is_plain_plan(setting, degrees, degrees.microbatches)) == 1
    for far, plain in itertools.product((False, True), repeat=2):
        own, other = (
            program.error_band_of(setting, end, is_far=far, is_plain=plain)
            for end in ("", "libraries")
        )
        temps = (sizes.temp, sizes.library_temp)
        below, above = doubtful_bytes((own, other), sizes.args, temps, pool)
        share = np.where(sizes.args + sizes.temp <= pool, above, below) / pool
        doubt = np.where((is_far == far) & (is_plain == plain), share, doubt)
    return doubt


def _margin(pool: Numbers, inside: Numbers) -> Numbers:
    return np.where(pool > 0, (pool - inside) / np.where(pool > 0, pool, 1), -np.inf)


def _over(setting: Setting, sizes: PlanSizes) -> Numbers:
    """Bytes by which the largest other phase needs more than the step."""
    more = sizes.other_inside - sizes.args - sizes.temp
    if setting.program.has_pool:
        return more
    return more + np.where(np.isfinite(more), sizes.other_outside, 0) - sizes.outside


def largest_batches(
    setting: Setting, degrees: Degrees, *, leaves_room: bool = False, arena: float = 1.0
) -> npt.NDArray[np.int64]:
    """The largest pdbs up to `MOST_PDBS` with which each plan fits with room; 1 where none does.

    Memory never falls as pdbs grows, so all plans are bisected at once. Options as of `fit`.
    """

    def has_room(part: Degrees) -> Mask:
        return fit(setting, part, leaves_room=leaves_room, arena=arena).has_room

    count = np.asarray(degrees.data).shape[0]
    low, high = np.ones(count, dtype=np.int64), np.full(count, MOST_PDBS + 1, dtype=np.int64)
    open_ = np.flatnonzero(has_room(degrees._replace(pdbs=low)))
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        part = Degrees(*(np.broadcast_to(np.asarray(v), count)[open_] for v in degrees))
        fits = has_room(part._replace(pdbs=middle))
        low[open_] = np.where(fits, middle, low[open_])
        high[open_] = np.where(fits, high[open_], middle)
        open_ = open_[high[open_] - low[open_] > 1]
    return low


# How far one setting goes.

Batches = npt.NDArray[np.int64]

BOUND = 4096
"""No pdbs above this is tried for a setting."""

_POINTS = 128

At = Callable[[int], MemoryBreakdown]


@dataclass(frozen=True)
class Reach:
    """How far one strategy goes.

    ``largest`` is the largest pdbs that is not out of memory, 0 where 1 already is, None where the
    verdict is unknown; ``with_room`` the largest that is not borderline either.
    """

    largest: int | None
    with_room: int | None

    @property
    def is_bound(self) -> bool:
        """Whether the search ended at `BOUND`, not at a limit of the device."""
        return self.largest == BOUND


def at_pdbs(setting: Setting, project: Callable[[Setting], MemoryBreakdown]) -> At:
    """`project` of one setting as a function of pdbs that computes each number once."""
    known: dict[int, MemoryBreakdown] = {}

    def at(pdbs: int) -> MemoryBreakdown:
        if pdbs not in known:
            known[pdbs] = project(replace(setting, pdbs=pdbs))
        return known[pdbs]

    return at


def reach(at: At, bound: int = BOUND) -> Reach:
    """The largest pdbs up to `bound` that fits, as `Reach` says."""
    if at(1).verdict == "unknown":
        return Reach(None, None)
    largest = _last(lambda pdbs: at(pdbs).verdict != "oom", bound)
    return Reach(largest, _last(lambda pdbs: at(pdbs).verdict == "fits", largest))


def reach_at_once(setting: Setting, bound: int = BOUND) -> Reach:
    """`reach` of the closed form itself, which evaluates many batches in one call.

    Slow twin: `reach`.
    """
    coarse = _ascending(np.geomspace(1, bound, _POINTS).round())
    found = fit(setting, degrees_of(setting)._replace(pdbs=coarse))
    if found.is_unknown[0]:
        return Reach(None, None)
    fine = [_between(coarse, failing) for failing in (found.is_oom, ~found.has_room)]
    tried = _ascending(np.concatenate([coarse, *fine]))
    found = fit(setting, degrees_of(setting)._replace(pdbs=tried))
    return Reach(_before(tried, found.is_oom), _before(tried, ~found.has_room))


def worth_showing(reaches: Sequence[Reach], most: int) -> list[int]:
    """At most `most` pdbs, ascending: where strategies end, one beyond, and 1.

    Strategies come in the order of their importance: what the first ones need is kept.
    """
    ends = [r.largest for r in reaches if r.largest is not None]
    wanted = [max(1, end) for end in ends] + [1] + [min(end + 1, BOUND) for end in ends]
    halves = [max(1, end // 2) for end in ends]
    return sorted(list(dict.fromkeys([*wanted, *halves]))[:most])


def _ascending(batches: npt.NDArray[Any]) -> Batches:
    """Each batch once. np.unique imports numpy.ma, a thirtieth of the time of an answer."""
    return np.array(sorted(set(batches.tolist())), dtype=np.int64)


def _between(batches: Batches, failing: npt.NDArray[np.bool_]) -> Batches:
    """All numbers between the last batch that does not fail and the first that does."""
    first = int(failing.argmax())
    if not failing[first] or first == 0:
        return batches[:0]
    return np.arange(batches[first - 1] + 1, batches[first], dtype=np.int64)


def _before(batches: Batches, failing: npt.NDArray[np.bool_]) -> int:
    """The last batch before the first that fails; 0 where the first one does."""
    first = int(failing.argmax()) if failing.any() else len(batches)
    return int(batches[first - 1]) if first else 0


def _last(holds: Callable[[int], bool], bound: int) -> int:
    """The largest n from 1 to `bound` that holds, given that all below it do; 0 if none."""
    low, high = 0, 1
    while high <= bound and holds(high):
        low, high = high, high * 2
    high = min(high, bound + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# The largest batch by few plans that each take long: those of the compiler.

_MOST_TRIES = 6
_Plan = TypeVar("_Plan")


def largest_of(
    start: int, plan: Callable[[int], _Plan], verdict: Callable[[_Plan], str]
) -> tuple[int, _Plan, tuple[tuple[int, str], ...]]:
    """The largest batch whose plan fits, of as few as are made from `start` on.

    Returns:
        The batch, the smallest that was tried where none fits; its plan; (batch, verdict) in order.
    """
    plans: dict[int, _Plan] = {}

    def found(size: int) -> str:
        plans[size] = plan(size)
        return verdict(plans[size])

    tried = tuple(tried_sizes(start, found))
    largest = max((size for size, said in tried if said == "fits"), default=min(plans))
    return largest, plans[largest], tried


def tried_sizes(start: int, verdict: Callable[[int], str]) -> Iterator[tuple[int, str]]:
    """Sizes until the largest whose verdict is ``fits`` is known, or six were tried.

    Larger ones do not fit where one does not: upwards by a quarter, then the middle between.
    """
    fits, fails, size = 0, 0, start
    for _ in range(_MOST_TRIES):
        found = verdict(size)
        yield size, found
        if found == "fits":
            fits = size
        else:
            fails = size
        if fails - fits == 1:
            return
        size = (fits + fails) // 2 if fails else max(size + 1, size * 5 // 4)
