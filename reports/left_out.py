"""Devices that a law leaves out of a table: each has a row that says so."""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.answers.names import encodable
from moeprof.tables.analysis import Analysis

Row = dict[str, bool | int | float | str | None]


def left_out(analysis: Analysis) -> list[Row]:
    """A row of nulls for each device that a law withholds and the table does not have.

    It has the columns of the table, and under ``withheld`` the name of the law.
    """
    names = analysis.schema.names
    if not {"host", "device"} <= set(names):
        return []
    known = set(zip(analysis.table["host"], analysis.table["device"], strict=True))
    law_of: dict[tuple[str, int], str] = {}
    for each in analysis.withheld:
        place = (each.scope.host, each.scope.device)
        if each.scope.host and each.scope.device != -1 and place not in known:
            law_of.setdefault(place, each.law)
    nulls: Row = dict.fromkeys(names, None)
    return [
        nulls | {"host": encodable(host), "device": device, "withheld": law}
        for (host, device), law in sorted(law_of.items())
    ]


def said_of(row: Mapping[str, object]) -> str:
    """A note on such a row."""
    return (
        f"device {row['device']} of {row['host']} is left out: its row is withheld by the check "
        f"'{row['withheld']}'"
    )
