"""Question: how does what one run showed correct the projection of another?

A correction is a factor on the arena of an account: a framework, a strategy, a rematerialisation.
It is kept in a small JSON file with its evidence, and applied as a row of its own, so that rows
still sum to the total and the projection without it can be read off. Where the run's steps were
timed, seconds measured and estimated stand beside it: a search calibrates its estimates by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, Peak, Row, total
from moeprof.projector.setting import Setting, whole
from moeprof.projector.step_time import TimedRun, estimate
from moeprof.specs.plan import ALL_AXES
from moeprof.specs.sources.document import read_text

if TYPE_CHECKING:  # it reads profiles, which a projection with a correction need not
    from moeprof.projector.calibrate import Calibration

SCHEMA = "moeprof.memory_correction/1"
_MOST_S = 1e9
"""No step takes 30 years."""
_ROW = "correction by a captured run"
_TIMED = ("model", "split", "measured_s", "estimated_s", "run", "steps")
"""What a file says of a `TimedRun` beside its account."""


@dataclass(frozen=True)
class Evidence:
    """The run that a factor is from: sizes in bytes, day in UTC."""

    run: str
    program: str
    device: str
    jax_version: str
    date: str
    model: str
    devices: int
    pdbs: int | None
    sequence: int | None
    projected_temp_bytes: int
    measured_temp_bytes: int
    args_bytes: int


@dataclass(frozen=True)
class Correction:
    """``factor`` on the arena of settings of this framework, strategy, remat, hardware."""

    framework: str
    strategy: str
    remat: str
    hardware: str
    factor: float
    evidence: Evidence
    time: TimedRun | None = None

    def fits(self, setting: Setting) -> bool:
        """Whether the setting is of this account."""
        return self.key == account_of(setting)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The account that it is of."""
        return (self.framework, self.strategy, self.remat, self.hardware)


def account_of(setting: Setting) -> tuple[str, str, str, str]:
    """Framework, strategy, rematerialisation, hardware."""
    return (
        setting.framework,
        setting.strategy.name,
        setting.plan.remat.text,
        setting.hardware.key,
    )


def correction_of(calibration: Calibration) -> Correction:
    """The correction that a calibration supports.

    Raises:
        SpecError: the run does not match what was projected.
    """
    run, breakdown = calibration.run, calibration.breakdown
    temp = breakdown.temp_bytes
    if calibration.refusal or calibration.factor is None or temp is None:
        raise SpecError(f"calibration with {run.path}: nothing to store, {calibration.refusal}.")
    setting = breakdown.setting
    evidence = Evidence(
        run=run.path,
        program=run.program,
        device=run.device_model,
        jax_version=run.jax_version,
        date=run.date,
        model=setting.model.name,
        devices=setting.plan.devices,
        pdbs=setting.pdbs,
        sequence=setting.sequence,
        projected_temp_bytes=temp,
        measured_temp_bytes=run.temp_bytes + run.results_bytes,
        args_bytes=run.args_bytes,
    )
    return Correction(
        *account_of(setting),
        factor=calibration.factor,
        evidence=evidence,
        time=timed_run(calibration),
    )


def timed_run(calibration: Calibration) -> TimedRun | None:
    """Seconds of a step of the run, and of its estimate; None where either is not known."""
    run, setting = calibration.run, calibration.breakdown.setting
    if run.step_s is None or calibration.refusal:
        return None
    try:
        estimated_s = estimate(setting).seconds
    except SpecError:
        return None
    framework, strategy, remat, hardware = account_of(setting)
    split = tuple(axis for axis in ALL_AXES if getattr(setting.plan, axis) > 1)
    name = setting.model.name
    return TimedRun(
        framework, strategy, remat, hardware, name, split, run.step_s, estimated_s, run.path,
        run.steps,
    )  # fmt: skip


def store(file: Path, calibration: Calibration) -> Correction:
    """Write the correction of a calibration to a file, beside those of other accounts there.

    Raises:
        SpecError: the run does not match what was projected, or the file cannot be used.
    """
    found = correction_of(calibration)
    try:
        others = read_corrections(file) if file.exists() else ()
        kept = [other for other in others if other.key != found.key]
        document = {"schema": SCHEMA, "corrections": [_written(one) for one in (*kept, found)]}
        file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{file}: cannot be written: {error.strerror}.") from error
    return found


def _written(one: Correction) -> dict[str, object]:
    """A correction by the names of the file, which calls the framework its world."""
    row = asdict(one)
    time = row.pop("time")
    if time is not None:
        row["time"] = {name: time[name] for name in _TIMED}
    return {"world": row.pop("framework"), **row}


def read_corrections(file: Path) -> tuple[Correction, ...]:
    """The corrections of a file.

    Raises:
        SpecError: it cannot be read, or is none of `store`'s.
    """
    text = read_text(file, "a file of corrections")
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError("another schema, or none")
        return tuple(_read(row) for row in document["corrections"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpecError(
            f"{file}: expected corrections that `moeprof memory --calibrate` stored ({SCHEMA}), "
            f"found {_found(error)}. Store them again."
        ) from error


def _found(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON at line {error.lineno}"
    if isinstance(error, RecursionError):
        return "lists or objects that are nested too deep"
    return f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)


def corrected(breakdown: MemoryBreakdown, corrections: Sequence[Correction]) -> MemoryBreakdown:
    """The projection with the correction of its account as a row of each peak.

    Without one it stays as it is, and a note says so.
    """
    fitting = next((one for one in corrections if one.fits(breakdown.setting)), None)
    if fitting is None:
        known = ", ".join("/".join(one.key) for one in corrections) or "none"
        account = "/".join(account_of(breakdown.setting))
        note = f"No correction is of {account} (there are: {known}), so none was applied."
        return replace(breakdown, kept_notes=(*breakdown.notes, note))
    stages = tuple(
        replace(stage, peaks=tuple(_with(peak, fitting) for peak in stage.peaks))
        for stage in breakdown.stages
    )
    proof = fitting.evidence
    note = (
        f"The arena is multiplied by {fitting.factor:.3f}, as {proof.program} of {proof.run} "
        f"({proof.date}) took {proof.measured_temp_bytes:,} B where "
        f"{proof.projected_temp_bytes:,} B were projected."
    )
    return replace(breakdown, stages=stages, kept_notes=(*breakdown.notes, note))


def correcting(
    project: Callable[[Setting], MemoryBreakdown], file: Path
) -> Callable[[Setting], MemoryBreakdown]:
    """`project`, corrected by the factors of a file.

    Raises:
        SpecError: the file cannot be read.
    """
    known = read_corrections(file)
    return lambda setting: corrected(project(setting), known)


def _with(peak: Peak, correction: Correction) -> Peak:
    """A row for what does not grow with the rows that a rank receives, and one for what does."""
    more = [
        _row([row for row in peak.rows if row.is_routed == is_routed], correction, is_routed)
        for is_routed in (False, True)
        if any(row.is_routed == is_routed for row in peak.rows)
    ]
    return Peak(peak.name, (*peak.rows, *more))


def _row(rows: Sequence[Row], correction: Correction, is_routed: bool) -> Row:
    size, proof = total(rows), correction.evidence
    which = "routed rows" if is_routed else "other rows"
    return Row(
        name=f"{_ROW}, {which}",
        pool="temp",
        kind="temporaries",
        size_bytes=None if size is None else whole(size * (correction.factor - 1)),
        formula=f"({correction.factor:.4f} − 1) · sum of the {which} of this peak",
        source=f"{proof.program} of {proof.run}, {proof.device}, {proof.date}",
        confidence="medium",
        is_routed=is_routed,
    )


def _read(row: dict[str, object]) -> Correction:
    texts = {name: row[name] for name in ("world", "strategy", "remat", "hardware")}
    texts["framework"] = texts.pop("world")
    factor = row["factor"]
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("an account is text")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 1e6:
        raise ValueError(f"a factor above 0 was expected, found {factor!r}")
    evidence = row["evidence"]
    if not isinstance(evidence, dict):
        raise TypeError("evidence is missing")
    time = row.get("time")
    return Correction(
        **texts,  # type: ignore[arg-type]
        factor=float(factor),
        evidence=_read_evidence(evidence),
        time=None if time is None else _read_time(texts, time),
    )


def _read_evidence(said: dict[str, object]) -> Evidence:
    for one in fields(Evidence):
        kind, value = str(one.type), said[one.name]
        is_kind = isinstance(value, int if kind.startswith("int") else str)
        is_none = value is None and kind.endswith("None")
        if not (is_kind or is_none) or isinstance(value, bool):
            raise TypeError(f"{one.name} as {value!r} in the evidence")
    return Evidence(**said)  # type: ignore[arg-type]


def _read_time(account: dict[str, object], time: object) -> TimedRun:
    if not isinstance(time, dict):
        raise TypeError("a time is measured and estimated seconds")
    for name in ("measured_s", "estimated_s"):
        seconds = time[name]
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds < _MOST_S:
            raise ValueError(f"{name} above 0 was expected, found {seconds!r}")
    found = {name: time[name] for name in _TIMED}
    return TimedRun(**account, **found | {"split": tuple(found["split"])})  # type: ignore[arg-type]
