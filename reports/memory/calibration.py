"""Question: how is a projection shown beside a captured run: as JSON, and as text at 80 columns?"""

from __future__ import annotations

import json
from typing import TypedDict

from rich.text import Text

from moeprof.answers.document import Value
from moeprof.answers.values import NOT_KNOWN, printable, shortened, signed
from moeprof.projector.breakdown import Row
from moeprof.projector.calibrate import Calibration, Comparison
from moeprof.projector.correction import account_of, timed_run
from moeprof.reports.parts.terminal import wrapped
from moeprof.units import format_bytes, format_ns, format_percent

SCHEMA = "moeprof.calibration/1"
WIDTH = 80
_MOST_PARTS = 4
_MOST_SHARE = 10.0
"""Above it a share of next to nothing: the sizes say more."""

Cells = dict[str, Value]


class ComparisonInfo(TypedDict):
    """One pool and kind, with what is in it on either side, largest first."""

    pool: str
    kind: str
    projected_bytes: int | None
    measured_bytes: int | None
    difference_bytes: int | None
    projected: list[Cells]
    measured: list[Cells]


class CalibrationDocument(TypedDict):
    """``refusal`` says why ``factor`` may not be stored; None: it may.

    ``time`` has a step's seconds measured and estimated; None where either is not known.
    """

    schema: str
    account: Cells
    run: Cells
    totals: list[ComparisonInfo]
    rows: list[ComparisonInfo]
    peak: Cells
    factor: float | None
    time: Cells | None
    refusal: str | None
    notes: list[str]


def build_calibration(calibration: Calibration) -> CalibrationDocument:
    """The document of a calibration."""
    run, breakdown = calibration.run, calibration.breakdown
    names = ("world", "strategy", "remat", "hardware")
    return {
        "schema": SCHEMA,
        "account": dict(zip(names, account_of(breakdown.setting), strict=True)),
        "run": {
            "path": run.path,
            "program": run.program,
            "platform": run.platform,
            "device": run.device_model,
            "jax_version": run.jax_version,
            "date": run.date,
            "allocator_peak_bytes": run.allocator_peak_bytes,
        },
        "totals": [_info(one) for one in calibration.totals],
        "rows": [_info(one) for one in calibration.rows],
        "peak": {
            "projected": breakdown.worst.peak.name,
            "measured_component": run.peak_op_component,
        },
        "factor": calibration.factor,
        "time": _time(calibration),
        "refusal": calibration.refusal,
        "notes": list(calibration.notes),
    }


def calibration_json(document: CalibrationDocument) -> str:
    """The document as strict JSON."""
    return json.dumps(document, allow_nan=False)


def calibration_text(document: CalibrationDocument) -> Text:
    """The document at 80 columns: totals, then kinds, each with its largest parts."""
    run = document["run"]
    who = f"{run['program']} on {run['device'] or run['platform']}, {run['date']}"
    lines = [Text(printable(who), style="bold")]
    lines += [Text(f"{'':24}{'projected':>12}{'measured':>12}{'difference':>13}")]
    lines += [_line(one["pool"], one) for one in document["totals"]]
    if document["rows"]:
        lines += [Text(""), Text("By kind, measured at the peak", style="bold")]
    for one in document["rows"]:
        lines.append(_line(f"{one['pool']}: {one['kind']}", one))
        lines += [_part(row, True) for row in one["projected"][:_MOST_PARTS]]
        lines += [_part(row, False) for row in one["measured"][:_MOST_PARTS]]
    peak = document["peak"]
    ran = peak["measured_component"] or NOT_KNOWN
    plain = ["", f"fullest at: {peak['projected']} (projected); {ran} (measured)", ""]
    plain += _verdict(document)
    plain += [line for note in document["notes"] for line in wrapped(f"note: {note}", WIDTH)]
    return Text("\n").join([*lines, *map(Text, plain)])


def _time(calibration: Calibration) -> Cells | None:
    """A step's seconds measured and estimated; None where either is not known."""
    found = timed_run(calibration)
    if found is None:
        return None
    return {
        "measured_s": found.measured_s,
        "estimated_s": found.estimated_s,
        "steps": found.steps,
    }


def _info(one: Comparison) -> ComparisonInfo:
    rows = sorted(one.projected_rows, key=lambda row: -int(row.size_bytes or 0))
    return {
        "pool": one.pool,
        "kind": one.kind,
        "projected_bytes": one.projected_bytes,
        "measured_bytes": one.measured_bytes,
        "difference_bytes": one.difference_bytes,
        "projected": [
            {
                "what": row.name,
                "size_bytes": None if row.size_bytes is None else int(row.size_bytes),
            }
            for row in rows
        ],
        "measured": [
            {"what": part.what, "size_bytes": part.size_bytes} for part in one.measured_parts
        ],
    }


def _whole(row: Row) -> int | None:
    return None if row.size_bytes is None else int(row.size_bytes)


def _line(name: str, one: ComparisonInfo) -> Text:
    projected, measured = (_size(one[key]) for key in ("projected_bytes", "measured_bytes"))
    difference = one["difference_bytes"]
    change = "" if difference is None else signed(difference, format_bytes) or "none"
    share = ""
    if difference and one["projected_bytes"]:
        ratio = difference / one["projected_bytes"]
        share = signed(ratio, format_percent) if abs(ratio) < _MOST_SHARE else ""
    figures = f"{projected:>12}{measured:>12}{change:>13}{share:>11}"
    return Text(f"{shortened(name, 23):<24}{figures}".rstrip(), style="bold")


def _part(row: Cells, is_projected: bool) -> Text:
    size = _size(row["size_bytes"])
    columns = f"{size:>12}{'':12}" if is_projected else f"{'':12}{size:>12}"
    what = shortened(printable(str(row["what"])), WIDTH - 50)
    return Text(f"{'':24}{columns}  {what}")


def _size(value: Value) -> str:
    return format_bytes(float(value)) if isinstance(value, int) else NOT_KNOWN


def _verdict(document: CalibrationDocument) -> list[str]:
    refusal, factor = document["refusal"], document["factor"]
    if refusal is not None:
        text = f"No correction may be stored: {refusal}."
    else:
        text = f"The run took {factor:.3f} times the projected arena."
    time = document["time"]
    if time is not None:
        measured, estimated = (float(str(time[key])) for key in ("measured_s", "estimated_s"))
        text += (
            f" A step took {format_ns(measured * 1e9)}, {measured / estimated:.2f} times the "
            f"{format_ns(estimated * 1e9)} that are estimated ({time['steps']} steps)."
        )
    return wrapped(text, WIDTH)
