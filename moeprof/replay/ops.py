"""Question: what does a program say of one instruction, ready to be written as code?"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from moeprof.replay.shapes import Array, array_of, numbers_of


@dataclass(frozen=True)
class Op:
    """One instruction. ``said`` has the keys of the columns ``details`` and ``attributes``."""

    name: str
    opcode: str
    shape: str
    computation: str
    is_root: bool
    operands: tuple[str, ...]
    called: tuple[str, ...]
    parameter: int
    target: str
    config: str
    groups: str
    pairs: str
    said: dict[str, str]

    @property
    def array(self) -> Array:
        """Its result.

        Raises:
            ReplayError: the result is no array.
        """
        return array_of(self.shape, self.said.get("layout", ""))

    def dims(self, key: str) -> tuple[int, ...]:
        """The numbers behind a key, none where it does not say them."""
        return numbers_of(self.said.get(key, ""))

    def rows(self, key: str) -> list[tuple[int, ...]]:
        """``0:4:1,2:8:1`` as rows of numbers."""
        text = self.said.get(key, "")
        return [tuple(map(int, row.split(":"))) for row in text.split(",")] if text else []


@dataclass(frozen=True)
class Ops:
    """The instructions of one program, by name."""

    by_name: dict[str, Op]

    def inside(self, computation: str) -> list[Op]:
        """The instructions of a computation, each after those that it uses."""
        return [op for op in self.by_name.values() if op.computation == computation]


def ops_of(hlo_ops: pd.DataFrame, module: int) -> Ops:
    """The instructions of a program, from `HLO_OPS`."""
    rows = hlo_ops[hlo_ops["module"] == module]
    columns = (
        *("op", "opcode", "shape", "computation", "is_root", "operands", "called", "parameter"),
        *("custom_call_target", "backend_config", "replica_groups", "source_target_pairs"),
        *("details", "attributes"),
    )
    found = {}
    for row in zip(*(rows[name].tolist() for name in columns), strict=True):
        name, opcode, shape, computation, is_root, operands, called, parameter, *rest = row
        target, config, groups, pairs, details, attributes = rest
        said = dict(part.partition("=")[::2] for part in f"{details} {attributes}".split())
        found[name] = Op(
            name,
            opcode,
            shape,
            computation,
            is_root,
            tuple(operands.split()),
            tuple(called.split()),
            parameter,
            target,
            config,
            groups,
            pairs,
            said,
        )
    return Ops(found)
