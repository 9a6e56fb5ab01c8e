"""Question: how does a pipeline read on a terminal, and as one JSON document?

The text is drawn from the document alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import numpy as np
import pandas as pd
from rich.text import Text

from moeprof.reports.document import ColumnInfo, Drawing, Finding, Value, drawing_of, finding_of
from moeprof.reports.grid import drawn_grid
from moeprof.reports.lines import wrapped
from moeprof.reports.names import encodable, printable, shortened
from moeprof.reports.values import written
from moeprof.tables.analysis import Analysis
from moeprof.tables.pipeline import STAGE_WORK

SCHEMA = "moeprof.pipeline/1"
WIDTH = 80
_FORWARD, _BACKWARD, _WEIGHTS, _IDLE = "0123456789", "abcdefghij", "w", "·"
_LEGEND = (
    "0–9 forward, a–j backward, by their order on the stage, last digit; w weight gradient; · idle"
)
_HELD_LEGEND = "held: microbatches whose activations the stage holds at its peak"
_SCHEDULES_LEGEND = (
    "bubble: idle of the iteration, played; in theory: in closed form, of equal stages; pauses: "
    "what remains where the optimizer of a stage does not wait for others; held: microbatches "
    "whose activations the worst stage holds"
)
# what the table shows first; the rest is in the JSON
_COLUMNS = ("stage", "work_ns", "idle_ns", "bubble_share", "fill_ns", "imbalance_ns", "wait_ns")
_HELD = ("in_flight", "activation_bytes")  # where known


class Shown(TypedDict):
    """One pipeline: where from, what was found, and the pieces of work of the iteration shown.

    `grid` is there where one is found: what to draw of the work and the time without it.
    """

    source: str
    finding: Finding
    work: list[dict[str, Value]]
    grid: NotRequired[Drawing]


class Planned(TypedDict):
    """One of the schedules that are compared."""

    finding: Finding
    grid: Drawing


class PipelineDocument(TypedDict):
    """The whole of `moeprof.pipeline/1`; what was not asked for is None.

    `schedules` is there where they are compared; its `work` is empty, `planned` has each of them by
    name. `arguments` are the words of the command that made it.
    """

    schema: str
    projected: Shown | None
    measured: Shown | None
    schedules: NotRequired[Shown]
    planned: NotRequired[dict[str, Planned]]
    arguments: NotRequired[list[str]]


def shown(
    source: str, analysis: Analysis, work: pd.DataFrame, grid: Analysis | None = None
) -> Shown:
    """`work` is `STAGE_WORK` of the iteration that `analysis` and `grid` are about."""
    columns = [STAGE_WORK.check(work)[name].tolist() for name in STAGE_WORK.names]
    rows = [dict(zip(STAGE_WORK.names, row, strict=True)) for row in zip(*columns, strict=True)]
    found: Shown = {"source": encodable(source), "finding": finding_of(analysis), "work": rows}
    if grid is not None:
        found["grid"] = drawing_of(grid)
    return found


def planned(analysis: Analysis, grid: Analysis) -> Planned:
    """One schedule of those that are compared."""
    return {"finding": finding_of(analysis), "grid": drawing_of(grid)}


def to_json(document: PipelineDocument) -> str:
    """Strict JSON, ASCII only; refuses NaN and infinities."""
    return json.dumps(document, allow_nan=False)


def drawn(document: PipelineDocument) -> Text:
    """Schedules, then both pipelines, projected first: verdict, grid over time, table, notes."""
    parts = [_schedules(document["schedules"])] if "schedules" in document else []
    parts += [
        _block(name, part)
        for name, part in (("Projected", document["projected"]), ("Measured", document["measured"]))
        if part is not None
    ]
    return Text("\n\n").join(parts)


def grid(work: Sequence[Mapping[str, Value]], whole_ns: int, stages: int, width: int) -> list[str]:
    """One line per stage, `width` letters for `whole_ns`: what runs in the middle of each letter's
    time.
    """
    pieces = pd.DataFrame(work, columns=["stage", "kind", "slot", "start_ns", "duration_ns"])
    middles = (np.arange(width) + 0.5) * whole_ns / width
    lines = []
    for stage in range(stages):
        mine = pieces[pieces["stage"] == stage].sort_values("start_ns")
        letters = np.array([_IDLE, *map(_letter, mine["kind"], mine["slot"])])
        start = mine["start_ns"].to_numpy(dtype="float64")
        end = start + mine["duration_ns"].to_numpy(dtype="float64")
        at = np.searchsorted(start, middles, side="right") - 1
        is_idle = (at < 0) | (middles >= np.append(end, 0)[at])
        lines.append("".join(letters[np.where(is_idle, 0, at + 1)]))
    return lines


def _letter(kind: str, slot: int) -> str:
    return {"forward": _FORWARD, "backward": _BACKWARD}.get(kind, _WEIGHTS * 10)[slot % 10]


def _block(name: str, part: Shown) -> Text:
    finding = part["finding"]
    lines = [Text(f"{name}  {shortened(printable(part['source']), WIDTH - 11)}", style="bold")]
    rows = finding["rows"]
    if rows:
        lines += [*map(Text, wrapped(verdict(finding), WIDTH)), Text("")]
        length = max(_whole(row) for row in rows)
        label = len(str(len(rows) - 1)) + 6
        drawing = grid(part["work"], length, len(rows), WIDTH - label - 1)
        lines += [Text(f"{f'stage {n}':<{label}} {line}") for n, line in enumerate(drawing)]
        lines += [Text(line, style="dim") for line in wrapped(_LEGEND, WIDTH)]
        columns = _known(finding, _COLUMNS)
        lines += [Text(""), *drawn_grid(columns, rows, WIDTH)]
        if columns[-1]["name"] in _HELD:
            lines.append(Text(_HELD_LEGEND, style="dim"))
    return Text("\n").join([*lines, *_notes(finding)])


def _schedules(part: Shown) -> Text:
    finding = part["finding"]
    lines = [Text(f"Schedules  {shortened(printable(part['source']), WIDTH - 11)}", style="bold")]
    names = [c["name"] for c in finding["columns"] if c["name"] not in _HELD]
    lines += drawn_grid(_known(finding, names), finding["rows"], WIDTH)
    lines += [Text(line, style="dim") for line in wrapped(_SCHEDULES_LEGEND, WIDTH)]
    return Text("\n").join([*lines, *_notes(finding)])


def _known(finding: Finding, names: Sequence[str]) -> list[ColumnInfo]:
    """The columns named, and what stages hold where it is known."""
    rows = finding["rows"]
    held = [name for name in _HELD if any(row[name] is not None for row in rows)]
    # in 80 columns there is no room for both: the bubble says how much is idle
    crowded = ("idle_ns",) if len(held) == len(_HELD) else ()
    shown = {*names, *held} - {*crowded}
    return [c for c in finding["columns"] if c["name"] in shown]


def _notes(finding: Finding) -> list[Text]:
    rows = finding["rows"]
    notes = [wrapped(printable(n), WIDTH - 3) for n in finding["notes"]]
    lines = [Text("")] if rows and notes else []
    for first, *rest in notes:
        lines += [Text(f" - {first}"), *[Text(f"   {line}") for line in rest]]
    return lines


def _whole(row: Mapping[str, Value]) -> int:
    work, idle = row["work_ns"], row["idle_ns"]
    return int(work or 0) + int(idle or 0)


def verdict(finding: Finding) -> str:
    """The pipeline in words: its shape, how long it takes, how much stages idle and why."""
    figures = {m["metric"]: written(m["value"], m["unit"]) for m in finding["headline"]}
    return (
        f"{figures['schedule']}: {figures['stages']} stages, {figures['microbatches']} "
        f"microbatches, {figures['chunks_per_stage']} chunk(s) per stage. Iteration "
        f"{figures['iteration']}: {figures['iteration_time']}. Bubble {figures['bubble_share']}, "
        f"{figures['schedule_share']} by the schedule. Of the iteration, stages idle: "
        f"{figures['fill_share']} to fill and drain, {figures['imbalance_share']} as stages are "
        f"unequal, {figures['wait_share']} in transfers and waits."
    )
