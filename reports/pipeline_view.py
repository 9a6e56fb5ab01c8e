"""Question: how does a pipeline read on a terminal, and as one JSON document?

The text is drawn from the document alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import pandas as pd
from rich.text import Text

from moeprof.reports.document import Finding, Value, finding_of, plain
from moeprof.reports.grid import drawn_grid
from moeprof.reports.names import encodable, printable, shortened
from moeprof.reports.values import written
from moeprof.tables.analysis import Analysis

SCHEMA = "moeprof.pipeline/1"
WIDTH = 80
_FORWARD, _BACKWARD, _WEIGHTS, _IDLE = "0123456789", "abcdefghij", "w", "·"
_LEGEND = (
    "0–9 forward, a–j backward, by their order on the stage, last digit; w weight gradient; · idle"
)
# what the table shows first; the rest is in the JSON
_COLUMNS = ("stage", "work_ns", "idle_ns", "bubble_share", "fill_ns", "imbalance_ns", "wait_ns")


class Shown(TypedDict):
    """One pipeline: where from, what was found, and the pieces of work of the iteration shown."""

    source: str
    finding: Finding
    work: list[dict[str, Value]]


class PipelineDocument(TypedDict):
    """The whole of `moeprof.pipeline/1`; what was not asked for is None."""

    schema: str
    projected: Shown | None
    measured: Shown | None


def shown(source: str, analysis: Analysis, work: pd.DataFrame) -> Shown:
    """`work` is `STAGE_WORK` of the iteration that `analysis` is about."""
    rows = [{str(k): plain(v) for k, v in row.items()} for row in work.to_dict("records")]
    return {"source": encodable(source), "finding": finding_of(analysis), "work": rows}


def drawn(document: PipelineDocument) -> Text:
    """Both pipelines, projected first: verdict, grid of stages over time, table, notes."""
    parts = [
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
        figures = {m["metric"]: written(m["value"], m["unit"]) for m in finding["headline"]}
        lines += [*map(Text, _verdict(figures)), Text("")]
        length = max(_whole(row) for row in rows)
        label = len(str(len(rows) - 1)) + 6
        drawing = grid(part["work"], length, len(rows), WIDTH - label - 1)
        lines += [Text(f"{f'stage {n}':<{label}} {line}") for n, line in enumerate(drawing)]
        lines += [Text(line, style="dim") for line in textwrap.wrap(_LEGEND, WIDTH)]
        columns = [c for c in finding["columns"] if c["name"] in _COLUMNS]
        lines += [Text(""), *drawn_grid(columns, rows, WIDTH)]
    notes = [textwrap.wrap(printable(n), WIDTH - 3) for n in finding["notes"]]
    lines += [Text("")] if rows and notes else []
    for first, *rest in notes:
        lines += [Text(f" - {first}"), *[Text(f"   {line}") for line in rest]]
    return Text("\n").join(lines)


def _whole(row: Mapping[str, Value]) -> int:
    work, idle = row["work_ns"], row["idle_ns"]
    return int(work or 0) + int(idle or 0)


def _verdict(figures: Mapping[str, str]) -> list[str]:
    text = (
        f"{figures['schedule']}: {figures['stages']} stages, {figures['microbatches']} "
        f"microbatches, {figures['chunks_per_stage']} chunk(s) per stage. Iteration "
        f"{figures['iteration']}: {figures['iteration_time']}. Bubble {figures['bubble_share']}, "
        f"{figures['schedule_share']} by the schedule. Of the iteration, stages idle: "
        f"{figures['fill_share']} to fill and drain, {figures['imbalance_share']} as stages are "
        f"unequal, {figures['wait_share']} in transfers and waits."
    )
    return textwrap.wrap(text, WIDTH)
