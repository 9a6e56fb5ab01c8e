"""Question: did a figure grow by more than a user allows?

``NAME>+5%``, ``NAME>-3%`` or ``NAME>+2ms``: the gate fails where new less base is above that. A
gate that asks for a gain (``step>-3%``) fails where the gain is less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from moeprof.analyzers.classify.components import MEANINGS
from moeprof.analyzers.comparison.changes import COMPONENT
from moeprof.analyzers.comparison.compare import Comparison
from moeprof.analyzers.comparison.step_change import CLASSES
from moeprof.errors import SpecError

PASSED, FAILED, NOT_KNOWN = "passed", "failed", "not known"
MEMORY = "memory"
TOKEN = "token"
NAMES = ("step", TOKEN, *CLASSES, *MEANINGS, MEMORY)
"""What a gate may ask about: the step, its time per token, its times, a component, memory."""

_OFFERED = 0.02
"""Share of time per token that is offered as a limit, where a gate on the step has one in time."""
_TIMES = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_FORM = re.compile(r"\s*([A-Za-z_]+)\s*>\s*([+-])\s*(\d+(?:\.\d*)?|\.\d+)\s*([%A-Za-zµ]+)\s*")


@dataclass(frozen=True)
class Gate:
    """A limit to the change of a figure: a share of base, or ns, or bytes."""

    expression: str
    name: str
    limit: float
    unit: str


@dataclass(frozen=True)
class Outcome:
    """How a gate ended. ``change`` and ``allowed`` are in ``unit`` (ns or bytes); None unknown."""

    gate: Gate
    verdict: str
    change: float | None
    allowed: float | None
    unit: str
    remark: str


def parse_gate(expression: str) -> Gate:
    """`expression` as a gate.

    Raises:
        SpecError: it has another form, or names no figure that a comparison has.
    """
    found = _FORM.fullmatch(expression)
    if found is None:
        raise SpecError(
            f"gate {expression!r}: expected NAME>+NUMBER or NAME>-NUMBER with a unit (%, ns, us, "
            "ms, s; for memory %, B, KiB, MiB, GiB, TiB), as grouped_gemm>+5%"
        )
    name, sign, number, unit = found.groups()
    if name not in NAMES:
        raise SpecError(f"gate {expression!r}: no figure is named {name!r}; there are: {_listed()}")
    units = _SIZES if name == MEMORY else _TIMES
    if unit != "%" and unit not in units:
        raise SpecError(
            f"gate {expression!r}: {name} has no unit {unit!r}; there are: %, {', '.join(units)}"
        )
    limit = float(number) * (-1.0 if sign == "-" else 1.0)
    kind = "share" if unit == "%" else "bytes" if name == MEMORY else "ns"
    return Gate(expression, name, limit / 100 if unit == "%" else limit * units[unit], kind)


def outcome(gate: Gate, comparison: Comparison) -> Outcome:
    """Whether `gate` holds; not known where its figure is not."""
    unit = "bytes" if gate.name == MEMORY else "ns"
    row = _row(gate.name, comparison)
    if row is None or pd.isna(row[f"change_{unit}"]):
        why = "see the notes"
        if gate.name == TOKEN:
            why = "it takes the tokens per step of both runs"
        return Outcome(gate, NOT_KNOWN, None, None, unit, f"the figure is not known: {why}")
    change, base = float(row[f"change_{unit}"]), float(row[f"base_{unit}"])
    allowed = gate.limit * base if gate.unit == "share" else gate.limit
    verdict = FAILED if change > allowed else PASSED
    remarks = [str(row.get("verdict", "")), _on_tokens(gate, comparison)]
    return Outcome(gate, verdict, change, allowed, unit, "; ".join(filter(None, remarks)))


def _on_tokens(gate: Gate, comparison: Comparison) -> str:
    """That steps of unlike work are compared, and the gate that holds for both; else empty."""
    if gate.name in (TOKEN, MEMORY) or comparison.token.empty:
        return ""
    base, new = (comparison.token[f"{side}_tokens"].iloc[0] for side in ("base", "new"))
    if base == new:
        return ""
    share = gate.limit if gate.unit == "share" else _OFFERED
    return (
        f"tokens per step {base:,.0f} → {new:,.0f}: a gate on time per token is "
        f"'{TOKEN}>{100 * share:+.4g}%'"
    )


def _row(name: str, comparison: Comparison) -> pd.Series | None:
    """The row of the figure; of a component that neither run has one of zeros."""
    if name == MEMORY:
        return _first(comparison.memory, comparison.memory["part"] == "peak")
    if name == TOKEN:
        return _first(comparison.token, comparison.token["part"] == TOKEN)
    if name not in MEANINGS:
        return _first(comparison.step, comparison.step["part"] == name)
    rows = comparison.rows
    if not rows["level"].eq(COMPONENT).any():
        return None
    found = _first(rows, (rows["level"] == COMPONENT) & (rows["component"] == name))
    nothing = pd.Series({"base_ns": 0.0, "change_ns": 0.0, "verdict": "in neither run"})
    return nothing if found is None else found


def _first(table: pd.DataFrame, mask: pd.Series) -> pd.Series | None:
    return table[mask].iloc[0] if mask.any() else None


def _listed() -> str:
    return ", ".join(NAMES)
