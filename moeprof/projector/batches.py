"""Question: how many sequences per device still fit, and which numbers are worth showing?

Memory never falls as the batch of a device (pdbs) grows, so the largest that fits is found by
bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.setting import Setting

BOUND = 4096
"""No pdbs above this is tried."""

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


def worth_showing(reaches: Sequence[Reach], most: int) -> list[int]:
    """At most `most` pdbs, ascending: where strategies end, one beyond, and 1.

    Strategies come in the order of their importance: what the first ones need is kept.
    """
    ends = [r.largest for r in reaches if r.largest is not None]
    wanted = [max(1, end) for end in ends] + [1] + [min(end + 1, BOUND) for end in ends]
    halves = [max(1, end // 2) for end in ends]
    return sorted(list(dict.fromkeys([*wanted, *halves]))[:most])


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
