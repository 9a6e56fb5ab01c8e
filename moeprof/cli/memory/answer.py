"""Question: which cells of strategy × pdbs are projected, which one is shown in full, beside what?

Beside the closed form may stand what XLA's compiler lays out for that cell, or what a captured run
took, whose factor corrects later projections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from moeprof.cli.memory.options import RunOptions
from moeprof.cli.memory.setting import Wanted
from moeprof.cli.progress import working
from moeprof.errors import SelectionError
from moeprof.projector.batches import BOUND, At, Reach, at_pdbs, reach, reach_at_once, worth_showing
from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.levers import fits_up_to_overload, levers
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.reports.memory.document import (
    SCHEMA,
    Break,
    Cell,
    CompiledInfo,
    MemoryDocument,
    MemoryRow,
    inputs_of,
    row_of,
)
from moeprof.specs.parameters import active_parameter_count, parameter_count
from moeprof.specs.strategy import Strategy

Projecting = Callable[[Setting], MemoryBreakdown]
Compiling = Callable[[Setting], CompiledInfo]
MOST_BATCHES = 6
GIB = 2**30


@dataclass(frozen=True)
class _Line:
    """One strategy: its projections by pdbs, and how far it goes."""

    strategy: Strategy
    at: At
    reach: Reach


def answer(
    wanted: Wanted,
    detail: str | None,
    arguments: Sequence[str],
    projecting: Projecting = project,
    compiling: Compiling | None = None,
) -> MemoryDocument:
    """Project every cell that was asked for by `projecting`, and put them together.

    The cell that is shown is compiled as well where there is `compiling`.

    Raises:
        SelectionError: `detail` is no cell.
    """
    wanted = _with_room(wanted)
    lines = [_line(wanted, strategy, projecting) for strategy in wanted.strategies]
    batches = list(wanted.batches) or worth_showing([line.reach for line in lines], MOST_BATCHES)
    cell = _cell(detail, lines, batches)
    model = wanted.setting.model
    rows = [row for line in lines for row in _rows(line, batches, cell)]
    if compiling is not None:
        _compile(compiling, lines, cell, rows)
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
        "first_to_break": {line.strategy.name: _break(line) for line in lines},
        "detail": cell,
        "arguments": list(arguments),
    }


def _compile(
    compiling: Compiling, lines: Sequence[_Line], cell: Cell, rows: Sequence[MemoryRow]
) -> None:
    """Put the compiler's plan of the cell that is shown beside its closed form."""
    pdbs = cell["pdbs"]
    assert pdbs is not None
    line = next(line for line in lines if line.strategy.name == cell["strategy"])
    for row in rows:
        if (row["strategy"], row["pdbs"]) == (cell["strategy"], pdbs):
            row["compiled"] = compiling(line.at(pdbs).setting)


def _break(line: _Line) -> Break | None:
    largest = line.reach.largest
    if largest is None or largest == BOUND:
        return None
    return {"pdbs": largest + 1, "what": line.at(largest + 1).breaks_first}


def _with_room(wanted: Wanted) -> Wanted:
    """Lower a fraction that nobody asked for, where it leaves too little beside the pool."""
    setting = wanted.setting
    if wanted.is_fraction_asked or setting.world == "megatron":
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


def _line(wanted: Wanted, strategy: Strategy, projecting: Projecting) -> _Line:
    setting = replace(wanted.setting, strategy=strategy)
    at = at_pdbs(setting, projecting)
    return _Line(strategy, at, reach_at_once(setting) if projecting is project else reach(at))


def _rows(line: _Line, batches: Sequence[int], cell: Cell) -> list[MemoryRow]:
    """The cells of one strategy; of the one shown, levers for the first that may not fit."""
    is_shown = line.strategy.name == cell["strategy"]
    asked = [*batches, cell["pdbs"]] if is_shown and cell["pdbs"] else batches
    made = [line.at(pdbs) for pdbs in sorted(set(asked))]
    near = next((one for one in made if one.verdict in ("borderline", "oom")), None)
    return [
        row_of(
            one,
            overload=fits_up_to_overload(one),
            levers=levers(one) if is_shown and one is near else None,
        )
        for one in made
    ]


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


# ``--compile``: the compiler's own plan of a cell, beside the closed form.

BUNDLED = "bundled"


def of_bundled(options: RunOptions) -> RunOptions:
    """The options with the bundled model's world: its step is what is compiled.

    Raises:
        SelectionError: another world is asked for.
    """
    if options.world not in (None, BUNDLED):
        raise SelectionError(
            f"--compile: compiles the bundled model's step, so expected --world {BUNDLED}, found "
            f"{options.world!r}. Another program is compiled by moeprof.projector.compiled.plan."
        )
    return replace(options, world=BUNDLED)


def compiled(setting: Setting) -> CompiledInfo:
    """Compile the step of a setting for its hardware, which need not be there.

    Raises:
        MoeprofError: the compiler is not installed, cannot be had for the hardware, or fails.
    """
    from moeprof.projector.compiled.bundled import compile_bundled
    from moeprof.reports.memory.document import compiled_info

    with working("compiling the step"):
        return compiled_info(compile_bundled(setting))


# ``--calibrate`` and ``--correction``: a projection beside a run, and what follows.


def projecting(correction: Path | None) -> Projecting:
    """The closed form, corrected by the factors of a file where one is given.

    Raises:
        SpecError: the file cannot be read.
    """
    if correction is None:
        return project
    from moeprof.projector.correction import corrected, read_corrections

    known = read_corrections(correction)

    def both(setting: Setting) -> MemoryBreakdown:
        return corrected(project(setting), known)

    return both


def calibrated(wanted: Wanted, run: Path, correction: Path | None, *, as_json: bool) -> None:
    """Print the projection beside the run; store its factor where a file is given.

    Raises:
        SelectionError: several strategies or batches are asked for, or none.
        SpecError: the run does not match, so that there is nothing to store.
        TraceError: the run cannot be read.
    """
    from moeprof.projector.calibrate import calibrate, measured
    from moeprof.projector.correction import store
    from moeprof.reports.memory.calibration import (
        build_calibration,
        calibration_json,
        calibration_text,
    )

    if len(wanted.strategies) != 1 or len(wanted.batches) != 1:
        raise SelectionError(
            "--calibrate: expected the run's own --strategy and --pdbs, one each, found "
            f"{len(wanted.strategies)} strategies and {len(wanted.batches) or 'no'} pdbs."
        )
    (strategy,), (pdbs,) = wanted.strategies, wanted.batches
    breakdown = project(replace(wanted.setting, strategy=strategy, pdbs=pdbs))
    with working("reading the run"):
        found = calibrate(breakdown, measured(run))
    document = build_calibration(found)
    if as_json:
        click.echo(calibration_json(document))
    else:
        from rich.console import Console

        Console(highlight=False).print(calibration_text(document), soft_wrap=True)
    if correction is not None:
        store(correction, found)
        click.echo(f"moeprof: correction stored in {correction}", err=True)
