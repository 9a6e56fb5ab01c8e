"""Question: how does a pipeline read on a terminal?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from rich.text import Text

from moeprof.answers.document import ColumnInfo, Finding, Value
from moeprof.answers.values import printable, shortened, whole
from moeprof.reports.parts.terminal import drawn_grid, wrapped
from moeprof.reports.pipeline.document import PipelineDocument, Shown, verdict

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


def drawn(document: PipelineDocument, width: int = WIDTH) -> Text:
    """Schedules, then both pipelines, projected first: verdict, grid over time, table, notes.

    Tables and names take `width` columns, all else 80 at most.
    """
    parts = [_schedules(document["schedules"], width)] if "schedules" in document else []
    parts += [
        _block(name, part, width)
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


def _block(name: str, part: Shown, width: int) -> Text:
    finding = part["finding"]
    lines = [Text(f"{name}  {shortened(printable(part['source']), width - 11)}", style="bold")]
    rows = finding["rows"]
    if rows:
        lines += [*map(Text, wrapped(verdict(finding), WIDTH)), Text("")]
        length = max(whole(row["work_ns"]) + whole(row["idle_ns"]) for row in rows)
        label = len(str(len(rows) - 1)) + 6
        drawing = grid(part["work"], length, len(rows), WIDTH - label - 1)
        lines += [Text(f"{f'stage {n}':<{label}} {line}") for n, line in enumerate(drawing)]
        lines += [Text(line, style="dim") for line in wrapped(_LEGEND, WIDTH)]
        columns = _known(finding, _COLUMNS)
        lines += [Text(""), *drawn_grid(columns, rows, width)]
        if columns[-1]["name"] in _HELD:
            lines.append(Text(_HELD_LEGEND, style="dim"))
    return Text("\n").join([*lines, *_notes(finding)])


def _schedules(part: Shown, width: int) -> Text:
    finding = part["finding"]
    lines = [Text(f"Schedules  {shortened(printable(part['source']), width - 11)}", style="bold")]
    names = [c["name"] for c in finding["columns"] if c["name"] not in _HELD]
    lines += drawn_grid(_known(finding, names), finding["rows"], width)
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
    notes = [wrapped(printable(n), WIDTH, first=" - ", indent="   ") for n in finding["notes"]]
    lines = [Text("")] if finding["rows"] and notes else []
    return [*lines, *(Text(line) for note in notes for line in note)]
