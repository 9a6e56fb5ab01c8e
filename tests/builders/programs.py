"""A `Program` out of rows on a few lines, and the library calls that XLA writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pandas as pd
from builders.work import Row, hlo

from moeprof.hlo.instruction import instructions_of
from moeprof.hlo.program import Program
from moeprof.tables import trace as tables

_EMPTY = {"int64": -1, "float64": 0.0, "bool": False, "text": "", "label": ""}


def program(*rows: Row) -> Program:
    filled = [
        {c.name: row.get(c.name, _EMPTY[c.kind]) for c in tables.HLO_OPS.columns} for row in rows
    ]
    return Program(instructions_of(pd.DataFrame(filled)))


def parameter(name: str, shape: str, **more: object) -> Row:
    return hlo(name, "parameter", shape=shape, **more)


def call(target: str, shape: str, *operands: str, config: object = None) -> Row:
    return hlo(
        "out",
        "custom-call",
        " ".join(operands),
        shape=shape,
        custom_call_target=target,
        backend_config=json.dumps(config) if config is not None else "",
    )


def dims(
    lhs: Sequence[int] = (1,),
    rhs: Sequence[int] = (0,),
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
) -> Mapping[str, object]:
    """Dimension numbers as cuBLAS calls of XLA write them, numbers as text."""
    names = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
    parts = zip(names, (lhs, rhs, lhs_batch, rhs_batch), strict=True)
    numbers = {f"{name}_dimensions": [str(d) for d in values] for name, values in parts}
    return {"gemm_backend_config": {"dot_dimension_numbers": numbers}}
