"""Rows of `HLO_OPS` on one line each, and programs of them."""

from __future__ import annotations

import pandas as pd

from moeprof.hlo.instruction import instructions_of
from moeprof.hlo.program import Program
from moeprof.tables.trace import HLO_OPS

_NONE = {"int64": -1, "bool": False, "text": "", "label": ""}


def row(op: str, opcode: str, shape: str, operands: str = "", **more: object) -> dict[str, object]:
    """An instruction of computation ``main`` of module 7, unless `more` says otherwise."""
    none = {column.name: _NONE[column.kind] for column in HLO_OPS.columns}
    given = {"op": op, "opcode": opcode, "shape": shape, "operands": operands}
    return {**none, "module": 7, "computation": "main", **given, **more}


def ops(*rows: dict[str, object]) -> pd.DataFrame:
    """`HLO_OPS` of the rows."""
    return HLO_OPS.frame(rows)


def program(*rows: dict[str, object]) -> Program:
    """The program that the rows are."""
    return Program(instructions_of(ops(*rows)))
