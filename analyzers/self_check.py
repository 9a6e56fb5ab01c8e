"""Question: do the tables hold the work that the devices did?

A plausible total beside an empty table is worse than an error: it means that events were read and
then lost on the way, so no figure of the report can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.analyzers.registry import is_drawing, question
from moeprof.analyzers.window import busy_ns, window
from moeprof.errors import TableError
from moeprof.tables.analysis import Analysis
from moeprof.tables.trace import Trace
from moeprof.units import format_ns


def check_tables(trace: Trace, findings: Mapping[str, Analysis]) -> None:
    """Fail where devices worked and a table that must hold their work has no row.

    Raises:
        TableError: it is so.
    """
    empty = [name for name, found in findings.items() if found.table.empty and _holds_all(name)]
    if not empty:
        return
    events = window(trace).events
    busy = int(busy_ns(events).sum())
    if busy > 0:
        raise TableError(
            f"{trace.meta.path}: devices are busy for {format_ns(busy)}, but table "
            f"{' and '.join(map(repr, empty))} has no row. No figure of this run can be trusted; "
            "please report it as a fault of moeprof, with the profile if you can"
        )


def _holds_all(name: str) -> bool:
    return not is_drawing(name) and question(name).holds_all_work
