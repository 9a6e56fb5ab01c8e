"""`moeprof memory --calibrate` and `--correction`: a projection beside a run, and what follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from moeprof.cli.memory_answer import Projecting
from moeprof.cli.memory_setting import Wanted
from moeprof.cli.progress import working
from moeprof.errors import SelectionError
from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting


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
    from moeprof.reports.calibration import (
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
