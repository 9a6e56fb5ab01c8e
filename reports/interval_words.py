"""What the time from the start of a step to the start of the next is made of, in words."""

from __future__ import annotations

from moeprof.reports.document import Document
from moeprof.reports.names import printable
from moeprof.reports.story import headline
from moeprof.units import format_ns, format_percent

_FEW_PROGRAMS = 3

INTERVAL_PARTS = {
    "interval_compute": "compute",
    "interval_exposed_communication": "exposed communication",
    "interval_exposed_copy": "exposed copies",
    "interval_idle": "idle",
    "between_other": "other work between steps",
    "between_idle": "idle between steps",
}
"""Metrics of `step_time` that add up to the mean interval, as they are called."""


def described_interval_parts(document: Document) -> str:
    """``compute 7.5 ms · idle between steps 2.5 ms``: what adds up to the mean interval."""
    found = headline(document, "step_time")
    named = [
        f"{name} {format_ns(float(ns))}"
        for metric, name in INTERVAL_PARTS.items()
        if isinstance(ns := found.get(metric), int | float) and ns
    ]
    return " · ".join(named)


def described_outside(document: Document) -> str:
    """``outside of every step: 21.1 % of device time (jit_apply)``; empty where there is none."""
    found = headline(document, "step_time")
    share, names = found.get("outside_share"), str(found.get("outside_programs") or "").split(", ")
    if not isinstance(share, float) or not share:
        return ""
    more = f" and {len(names) - _FEW_PROGRAMS} more" if len(names) > _FEW_PROGRAMS else ""
    told = ", ".join(printable(name) for name in names[:_FEW_PROGRAMS])
    return f"outside of every step: {format_percent(share)} of device time ({told}{more})"
