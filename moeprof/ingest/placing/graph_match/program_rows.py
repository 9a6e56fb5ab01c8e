"""Question: which instructions does each computation of a module hold, and in which order?"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd


class Row(NamedTuple):
    """What matching needs of a row of `HLO_OPS`. ``place`` is that in the schedule, or -1."""

    op: str
    computation: str
    opcode: str
    shape: str
    custom_call_target: str
    details: str
    parameter: int
    operands: tuple[str, ...]
    called: tuple[str, ...]
    place: int


def read_rows(instructions: pd.DataFrame) -> dict[str, list[Row]]:
    """Rows by computation, both in the order of `instructions` (`HLO_OPS` of one module).

    Names are unique in a sound program; of rows that share one the first counts.
    """
    columns = [instructions[name].tolist() for name in Row._fields[:-3]]
    operands = map(_words, instructions["operands"].tolist())
    called = map(_words, instructions["called"].tolist())
    is_first = (~instructions["op"].duplicated()).tolist()
    places = instructions["schedule"].tolist() if "schedule" in instructions else None
    unknown = [-1] * len(instructions)
    found: dict[str, list[Row]] = {}
    for values, is_new in zip(
        zip(*columns, operands, called, places or unknown, strict=True), is_first, strict=True
    ):
        row = Row(*values)
        if is_new:
            found.setdefault(row.computation, []).append(row)
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
