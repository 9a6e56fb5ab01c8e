"""Question: which cells of strategy × pdbs are projected, and which one is shown in full?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moeprof.cli.memory_setting import Wanted
from moeprof.errors import SelectionError
from moeprof.projector.batches import BOUND, At, Reach, at_pdbs, reach, worth_showing
from moeprof.projector.memory import project
from moeprof.reports.memory_document import SCHEMA, Cell, MemoryDocument, inputs_of, row_of
from moeprof.specs.parameters import active_parameter_count, parameter_count
from moeprof.specs.strategy import Strategy

MOST_BATCHES = 6


@dataclass(frozen=True)
class _Line:
    """One strategy: its projections by pdbs, and how far it goes."""

    strategy: Strategy
    at: At
    reach: Reach


def answer(wanted: Wanted, detail: str | None, arguments: Sequence[str]) -> MemoryDocument:
    """Project every cell that was asked for, and put them together.

    Raises:
        SelectionError: `detail` is no cell.
    """
    lines = [_line(wanted, strategy) for strategy in wanted.strategies]
    batches = list(wanted.batches) or worth_showing([line.reach for line in lines], MOST_BATCHES)
    cell = _cell(detail, lines, batches)
    model = wanted.setting.model
    rows = []
    for line in lines:
        of_detail = {cell["pdbs"]} if line.strategy.name == cell["strategy"] else set()
        for pdbs in sorted({*batches, *(n for n in of_detail if n)}):
            rows.append(row_of(line.at(pdbs)))
    return {
        "schema": SCHEMA,
        "inputs": inputs_of(
            wanted.setting,
            (parameter_count(model), active_parameter_count(model)),
            wanted.model_key,
        ),
        "said": list(wanted.said),
        "rows": rows,
        "largest_pdbs": {line.strategy.name: line.reach.largest for line in lines},
        "largest_pdbs_with_room": {line.strategy.name: line.reach.with_room for line in lines},
        "largest_pdbs_tried": BOUND,
        "detail": cell,
        "arguments": list(arguments),
    }


def _line(wanted: Wanted, strategy: Strategy) -> _Line:
    at = at_pdbs(replace(wanted.setting, strategy=strategy), project)
    return _Line(strategy, at, reach(at))


def _cell(detail: str | None, lines: Sequence[_Line], batches: Sequence[int]) -> Cell:
    """The cell that was asked for, else the largest that fits of the strategy that goes furthest.

    Among those that drop no token, where one of them fits at all.
    """
    if detail is not None:
        return _asked(detail, lines)
    dropless = [line for line in lines if line.strategy.capacity_factor is None]
    fitting = [line for line in dropless if line.reach.largest] or lines
    best = max(fitting, key=lambda line: line.reach.largest or 0)
    end = best.reach.largest
    below = [n for n in batches if end is not None and n <= end]
    return {"strategy": best.strategy.name, "pdbs": max(below, default=batches[0])}


def _asked(detail: str, lines: Sequence[_Line]) -> Cell:
    name, _, pdbs = detail.partition("@")
    names = [line.strategy.name for line in lines]
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
    return {"strategy": name, "pdbs": int(pdbs)}
