"""Question: what changed between two runs?

Reads:   two traces.
Returns: changes of the step, of each component and op, and of the memory of the step's program.

A figure that a failed check of either run would falsify is left out, and a note says why.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.comparison.changes import CHANGES, COMPONENT, PARTS, TOTAL, changes
from moeprof.analyzers.comparison.notes import (
    notes_on_runs,
    tokens_of,
    unlike_attribution,
    unlike_rules,
)
from moeprof.analyzers.comparison.side import side_of
from moeprof.analyzers.comparison.step_change import (
    STEP_CHANGES,
    TOKEN_CHANGES,
    notes_on_steps,
    step_changes,
    step_sides,
    token_changes,
)
from moeprof.analyzers.heap.at_peak import BUFFER_CHANGES, main_module, memory_difference, untold_on
from moeprof.analyzers.laws import laws_of
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace, without_names

_NEEDED = {
    "step": ("step_time", "timeline"),
    "rows": ("breakdown", "ops"),
    "waits": ("collectives",),
    "memory": ("memory",),
}
"""Part of a comparison -> the analyses whose failed checks falsify it."""


@dataclass(frozen=True)
class Comparison:
    """What changed, with times per device and step. A table without a row is not known.

    ``step`` has `STEP_CHANGES`, ``token`` `TOKEN_CHANGES`, ``rows`` `CHANGES`, ``memory``
    `MEMORY_CHANGES`, ``buffers`` `BUFFER_CHANGES`: what lies in memory at the peak of one and not
    of the other.
    """

    step: pd.DataFrame
    token: pd.DataFrame
    rows: pd.DataFrame
    memory: pd.DataFrame
    buffers: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the step and the components could be compared."""
        return len(self.step) > 0 and bool(self.rows["level"].eq(COMPONENT).any())


def compare(base: Trace, new: Trace) -> Comparison:
    """What changed from `base` to `new`."""
    notes = [*notes_on_runs(base, new)]
    why = {part: _reason(base, new, part) for part in _NEEDED}
    notes += dict.fromkeys(text for text in why.values() if text)
    step, token, rows = STEP_CHANGES.frame(), TOKEN_CHANGES.frame(), CHANGES.frame()
    if not why["step"]:
        sides = step_sides(base, new)
        step = step_changes(*sides)
        token = token_changes(*sides, (tokens_of(base), tokens_of(new)))
        notes += notes_on_steps(*sides)
    if not why["rows"]:
        rows = changes(*(side_of(trace) for trace in (base, new)))
        if unlike := unlike_attribution(base, new):
            notes.append(unlike)
            # ops of one run alone would be what is not known of the other: no cause is told
            rows = rows[rows["level"] == TOTAL].assign(**dict.fromkeys(PARTS, np.nan))
        if why["waits"]:
            rows = _without_waits(rows)
    memory, buffers = MEMORY_CHANGES.frame(), BUFFER_CHANGES.frame()
    if not why["memory"]:
        memory, buffers = memory_changes(base, new), _buffers(base, new)
        notes += [text for text in (untold_on(base, new),) if text]
    return Comparison(step, token, rows, memory, buffers, tuple(notes))


def _buffers(base: Trace, new: Trace) -> pd.DataFrame:
    """What lies in memory; where rules differ by kind and shape alone, as no rule names them."""
    if not unlike_rules(base, new):
        return memory_difference(base, new)
    return memory_difference(without_names(base), without_names(new), by_component=False)


def _reason(base: Trace, new: Trace, part: str) -> str:
    """Why a part of the comparison cannot be known; empty where it can."""
    for name, trace in (("base", base), ("new", new)):
        for check in laws_of(trace):
            if any(check.withholds_figures(question) for question in _NEEDED[part]):
                return f"{part} withheld: {name}: {check.check}: {check.detail}"
    if part == "rows" and (unlike := unlike_rules(base, new)):
        return unlike
    has_steps = [bool(trace.steps["used"].any()) for trace in (base, new)]
    if part in ("step", "rows") and not all(has_steps):
        missing = " and ".join(
            n for n, has in zip(("base", "new"), has_steps, strict=True) if not has
        )
        return (
            f"times are not compared: no whole step to measure in {missing}, and captures of "
            "different length say nothing about each other; capture a few steps of both"
        )
    return ""


def _without_waits(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` whose waits count to what a call costs."""
    waits = rows["wait_change_ns"].fillna(0.0)
    return rows.assign(per_call_change_ns=rows["per_call_change_ns"] + waits, wait_change_ns=np.nan)


# Memory of the step's program: the compiler's own account of one execution on one device, arguments
# + results that reuse none + temporary buffers. What lies in the host's memory has a row of its
# own. What the allocator, collectives and other programs hold besides is not in it.

MEMORY_CHANGES = Schema(
    "memory_changes",
    (
        Column("part", "text", "", "peak = argument + temp + output − alias; host: the same there"),
        Column("base_bytes", "float64", "bytes", "of the step's program in base; none unknown"),
        Column("new_bytes", "float64", "bytes", "of the step's program in new; none unknown"),
        Column("change_bytes", "float64", "bytes", "new less base"),
        Column("change_share", "float64", "share", "change of base"),
    ),
)
_PARTS = ("argument", "temp", "output", "alias")
HOST = "host"
"""The part that lies in the host's memory."""


def memory_changes(base: Trace, new: Trace) -> pd.DataFrame:
    """`MEMORY_CHANGES` of the programs of the step; NaN where sizes are missing."""
    sides = [np.array(_sizes(trace)) for trace in (base, new)]
    change = sides[1] - sides[0]
    share = np.divide(change, sides[0], out=np.full(len(change), np.nan), where=sides[0] > 0)
    return MEMORY_CHANGES.frame(
        {
            "part": ["peak", *_PARTS, HOST],
            "base_bytes": sides[0],
            "new_bytes": sides[1],
            "change_bytes": change,
            "change_share": share,
        }
    )


def _sizes(trace: Trace) -> list[float]:
    """Peak and its parts, then what lies on the host, in bytes, NaN unknown."""
    modules = trace.modules
    rows = modules[modules["module"] == main_module(trace)]
    if rows.empty:
        return [np.nan] * (len(_PARTS) + 2)
    device, host = (_parts(rows, where) for where in ("", "host_"))
    return [_held(device), *device.values(), _held(host)]


def _parts(rows: pd.DataFrame, where: str) -> dict[str, float]:
    found = {part: float(rows[f"{where}{part}_bytes"].iloc[0]) for part in _PARTS}
    return {part: size if size >= 0 else np.nan for part, size in found.items()}


def _held(parts: dict[str, float]) -> float:
    return parts["argument"] + parts["temp"] + parts["output"] - parts["alias"]
