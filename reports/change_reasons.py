"""Question: what does a change of a component come from, in words?"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.answers.names import printable
from moeprof.answers.values import number, signed
from moeprof.reports.comparison_document import Row
from moeprof.units import format_ns

_WORTH = 0.2
"""Share of the largest part of a change from which on another part is named too."""


def reasons(row: Row, ops: Sequence[Row]) -> str:
    """The parts of a component's change that matter, the largest first, each with its time."""
    parts = {name: number(row[name]) for name in ("wait_change_ns", "per_call_change_ns")}
    parts["calls_change_ns"] = number(row["calls_change_ns"])
    parts["ops"] = number(row["only_base_ns"]) + number(row["only_new_ns"])
    largest = max(map(abs, parts.values()), default=0.0)
    named = sorted(parts.items(), key=lambda item: -abs(item[1]))
    told = [
        f"{_cause(name, change, row, ops)} {signed(change, format_ns)}"
        for name, change in named
        if change and abs(change) >= _WORTH * largest
    ]
    return ", ".join(told)


def _cause(name: str, change: float, row: Row, ops: Sequence[Row]) -> str:
    if name == "wait_change_ns":
        return "waiting for other devices"
    if name == "per_call_change_ns":
        return f"the same calls take {'longer' if change > 0 else 'less'}"
    if name == "calls_change_ns":
        return f"{_calls(row)}{_phase(row, ops, ('calls_change_ns',), change)}"
    if row["replaced"]:
        return f"{printable(str(row['replaced']))} (op changed)"
    side = "new" if number(row["only_new_ns"]) > -number(row["only_base_ns"]) else "base"
    columns = ("only_base_ns", "only_new_ns")
    return f"ops that only {side} has{_phase(row, ops, columns, change)}"


def _calls(row: Row) -> str:
    """``64 more calls``: of the component as a whole, per device and step."""
    more = number(row["new_calls"]) - number(row["base_calls"])
    if not more:
        return "other ops are called"
    return f"{abs(more):,.4g} {'more' if more > 0 else 'fewer'} calls"


def _phase(row: Row, ops: Sequence[Row], columns: Sequence[str], change: float) -> str:
    """The phase that most of a part is in, where one has nearly all of it."""
    sums: dict[str, float] = {}
    for op in ops:
        if op["component"] == row["component"]:
            phase = str(op["phase"])
            sums[phase] = sums.get(phase, 0.0) + sum(number(op[name]) for name in columns)
    found = max(sums, key=lambda phase: sums[phase] / change, default="other")
    is_most = found != "other" and sums[found] / change >= 1 - _WORTH
    return f" in {found}" if is_most else ""
