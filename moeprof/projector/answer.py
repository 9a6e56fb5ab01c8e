"""Question: which cells of strategy × pdbs are projected, and which of them is shown in full?

`answer` takes what a request means and gives all of it as one value; the report of it is drawn
elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moeprof.errors import SelectionError
from moeprof.projector.batches import BOUND, At, Reach, at_pdbs, reach, reach_at_once, worth_showing
from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.levers import Lever, fits_up_to_overload, levers
from moeprof.projector.memory import project
from moeprof.projector.request import Wanted
from moeprof.projector.setting import Setting
from moeprof.specs.strategy import Strategy

Projecting = Callable[[Setting], MemoryBreakdown]
MOST_BATCHES = 6
GIB = 2**30


@dataclass(frozen=True)
class Cell:
    """One strategy at one batch per device.

    ``levers`` are asked for in one cell alone, the first of the shown strategy that may not fit.
    """

    breakdown: MemoryBreakdown
    fits_up_to_overload: float | None
    levers: tuple[Lever, ...] | None

    @property
    def name(self) -> tuple[str, int | None]:
        """Strategy and pdbs."""
        return self.breakdown.setting.strategy.name, self.breakdown.setting.pdbs


@dataclass(frozen=True)
class Line:
    """One strategy: its cells, how far it goes, and what is out of memory first beyond that."""

    strategy: Strategy
    cells: tuple[Cell, ...]
    reach: Reach
    first_to_break: MemoryBreakdown | None


@dataclass(frozen=True)
class Answer:
    """What a request is answered.

    ``wanted`` with the fraction of the device that was taken, ``lines`` per strategy, ``shown`` the
    cell whose account is shown in full.
    """

    wanted: Wanted
    lines: tuple[Line, ...]
    shown: Cell


def answer(wanted: Wanted, detail: str | None = None, projecting: Projecting = project) -> Answer:
    """Project every cell that was asked for by `projecting`, and put them together.

    Raises:
        SelectionError: `detail` is no cell.
    """
    wanted = _with_room(wanted)
    begun = [_begun(wanted, strategy, projecting) for strategy in wanted.strategies]
    name, pdbs = _cell(detail, begun, wanted.batches)
    batches = wanted.batches
    if not batches:
        own = {pdbs} if detail is None else set()
        batches = tuple(sorted({*worth_showing([one.reach for one in begun], MOST_BATCHES), *own}))
    lines = tuple(_line(one, batches, pdbs if one.strategy.name == name else None) for one in begun)
    shown = next(cell for line in lines for cell in line.cells if cell.name == (name, pdbs))
    return Answer(wanted, lines, shown)


@dataclass(frozen=True)
class _Begun:
    """One strategy: its projections by pdbs, and how far it goes."""

    strategy: Strategy
    at: At
    reach: Reach


def _begun(wanted: Wanted, strategy: Strategy, projecting: Projecting) -> _Begun:
    setting = replace(wanted.setting, strategy=strategy)
    at = at_pdbs(setting, projecting)
    # Many batches at once know nothing of hosts, whose memory is of one plan alone.
    is_plain = projecting is project and setting.host_memory_bytes is None
    return _Begun(strategy, at, reach_at_once(setting) if is_plain else reach(at))


def _line(begun: _Begun, batches: Sequence[int], shown: int | None) -> Line:
    """The cells of one strategy; of the one shown, levers for the first that may not fit."""
    asked = [*batches, shown] if shown else batches
    made = [begun.at(pdbs) for pdbs in sorted(set(asked))]
    near = next((one for one in made if one.verdict in ("borderline", "oom")), None)
    cells = tuple(
        Cell(one, fits_up_to_overload(one), levers(one) if shown and one is near else None)
        for one in made
    )
    end = begun.reach.largest
    beyond = None if end is None or begun.reach.is_bound else begun.at(end + 1)
    return Line(begun.strategy, cells, begun.reach, beyond)


def _with_room(wanted: Wanted) -> Wanted:
    """Lower a fraction that nobody asked for, where it leaves too little beside the pool."""
    setting = wanted.setting
    if wanted.is_fraction_asked or not setting.program.has_pool:
        return wanted
    known = [
        project(replace(setting, strategy=one, pdbs=1)).outside_bytes for one in wanted.strategies
    ]
    outside = max((size for size in known if size is not None), default=0)
    fraction = math.floor(100 * (1 - outside / setting.hardware.hbm_bytes)) / 100
    if not 0 < fraction < setting.mem_fraction:
        return wanted
    told = (
        f"mem_fraction {fraction:g} is taken: {setting.mem_fraction:g} would leave too little for "
        f"the {outside / GIB:.1f} GiB beside the pool. --mem-fraction sets another."
    )
    lower = replace(setting, mem_fraction=fraction)
    return replace(wanted, setting=lower, said=(*wanted.said, told))


def _cell(detail: str | None, begun: Sequence[_Begun], batches: Sequence[int]) -> tuple[str, int]:
    """The cell that was asked for, else the largest that fits of the strategy that goes furthest.

    First what surely fits, then what is borderline; among those that drop no token, where one of
    them fits. Of ``batches``, if there are some.
    """
    if detail is not None:
        return _asked(detail, [one.strategy.name for one in begun])
    dropless = [one for one in begun if one.strategy.capacity_factor is None]
    sure = {one.strategy.name: one.reach.with_room or 0 for one in begun}
    near = {one.strategy.name: one.reach.largest or 0 for one in begun}
    for ends, group in itertools.product((sure, near), (dropless, begun)):
        found = {}
        for one in group:
            end = ends[one.strategy.name]
            tried = [n for n in batches if n <= end] if batches else [end]
            if any(tried):
                found[one.strategy.name] = max(tried)
        if found:
            name = max(found, key=lambda name: ends[name])
            return name, found[name]
    return begun[0].strategy.name, batches[0] if batches else 1


def _asked(detail: str, names: Sequence[str]) -> tuple[str, int]:
    name, _, pdbs = detail.partition("@")
    if name not in names:
        raise SelectionError(
            f"--detail {detail}: expected STRATEGY@PDBS with one of {', '.join(names)}, "
            f"found {name!r}."
        )
    if not (pdbs.isascii() and pdbs.isdecimal() and 1 <= int(pdbs) <= BOUND):
        raise SelectionError(
            f"--detail {detail}: expected STRATEGY@PDBS with a pdbs from 1 to {BOUND}, "
            f"found {pdbs!r}."
        )
    return name, int(pdbs)
