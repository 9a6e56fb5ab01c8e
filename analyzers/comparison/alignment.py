"""Question: which ops of two runs are the same op, and by what is one of them known again?

Numbers of fusions and names of kernels are made anew by each compilation. What lasts is the place
in the model (component, phase, scope path), what is done there (JAX primitive, opcode, target of a
custom call) and with which shapes.

Ops are matched from what says most to what says least: in each round those left that share a key
with one left on the other side are one row. What shares none was only there in one run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.classify.components import COLLECTIVES
from moeprof.analyzers.classify.names import scopes
from moeprof.analyzers.classify.op_kinds import component_of_target, exchange_of, is_grouped_gemm
from moeprof.hlo.program import Op, Program
from moeprof.tables.schema import Column, Schema
from moeprof.vocabulary import kind_of_target, source_name

SIGNATURES = Schema(
    "signatures",
    (
        Column("row", "int64", "", "row of `HLO_OPS`"),
        Column("scope", "text", "", "scope path without what loops, remat and jit add to it"),
        Column("op", "text", "", "what is done: primitive, collective or target of a custom call"),
        Column("shape", "text", "", "result"),
        Column("operand_shapes", "text", "", "operands, separated by semicolons"),
        Column("opcode", "text", "", "HLO opcode, halves of a pair under one name"),
        Column("role", "text", "", "product, exchange, move, sort, reduce or elementwise"),
    ),
)

_ADDED = frozenset(
    {"while", "body", "cond", "checkpoint", "rematted_computation", "remat", "eval_jaxpr"}
    | {"closed_call", "core_call", "shard_map", "branch_0_fun", "branch_1_fun", "pjit"}
)
"""Scopes that JAX's control flow and remat add: turning remat on moves no op in the model."""

_COUNTED = re.compile(r"(?:\.\d+)+$")
"""What XLA adds where it makes a name of an instruction: ``broadcast.178``."""
_NUMBER = re.compile(r"\d+")
_NO_SHAPE = "[]"  # of an op that a profile keeps no more than the name of
_TEMPLATE = re.compile(r"[<(].*", re.DOTALL)
_SEPARATORS = re.compile(r"[_.\-#x]*(?:#[_.\-#x]*)+")

_PRODUCTS = frozenset({"dot", "dot_general", "ragged_dot", "ragged_dot_general", "convolution"})
_PRODUCT_CALLS = frozenset({"gemm", "grouped_gemm", "convolution"})
_MOVES = frozenset(
    {"gather", "scatter", "scatter-add", "scatter_add", "dynamic_slice", "dynamic-slice", "slice"}
    | {"dynamic_update_slice", "dynamic-update-slice", "copy", "transpose", "concatenate", "pad"}
    | {"take", "take_along_axis", "split", "squeeze", "reshape", "broadcast", "broadcast_in_dim"}
    | {"convert", "convert_element_type", "bitcast", "rev", "reverse", "one_hot"}
)
_SORTS = frozenset({"sort", "argsort", "top_k", "topk", "approx_top_k"})
_REDUCES = re.compile(r"^(reduce|cum|argmax|argmin)")


def signatures(program: Program, rows: pd.DataFrame, wanted: Iterable[int]) -> pd.DataFrame:
    """`SIGNATURES` of the wanted rows of `HLO_OPS`, all of one program (`rows` are its own)."""
    places = {int(row): str(rows["op"].at[row]) for row in wanted}
    found = [_signed(row, program.ops[name], program) for row, name in places.items()]
    return SIGNATURES.frame(found)


def kernel_family(name: str) -> str:
    """A kernel's name without template arguments and numbers, which tuning chooses anew."""
    plain = _NUMBER.sub("#", _TEMPLATE.sub("", source_name(name)).strip())
    return _SEPARATORS.sub("_", plain).strip("_") or name


def role_of(op: str, opcode: str) -> str:
    """The kind of job that an op does, so that one that came can stand for one that went."""
    if opcode in COLLECTIVES or opcode in ("send", "recv") or exchange_of(op):
        return "exchange"
    is_product_call = opcode == "custom-call" and kind_of_target(op) in _PRODUCT_CALLS
    if op in _PRODUCTS or opcode in _PRODUCTS or is_product_call or is_grouped_gemm(op):
        return "product"
    if op in _SORTS or opcode in _SORTS:
        return "sort"
    if op in _MOVES or opcode in _MOVES:
        return "move"
    return "reduce" if _REDUCES.match(op) else "elementwise"


def scope_of(op_name: str) -> str:
    """Scope path as ``layers_#/moe/dispatch``; of a merged name that of its first part."""
    paths = scopes(op_name)
    elements = paths[0] if paths else []
    return "/".join(_NUMBER.sub("#", name) for name in elements if name not in _ADDED)


def _signed(row: int, op: Op, program: Program) -> dict[str, object]:
    done = _done(op, program)
    operands = (program.ops[name].shape for name in op.operands if name in program.ops)
    return {
        "row": row,
        "scope": scope_of(op.op_name),
        "op": done,
        "shape": "" if op.shape == _NO_SHAPE else op.shape,
        "operand_shapes": ";".join(operands),
        "opcode": op.base_opcode,
        "role": role_of(done, op.base_opcode),
    }


def _done(op: Op, program: Program) -> str:
    """What an op does; of a fusion without a name what its result is made by."""
    if op.target:
        return op.target
    if op.base_opcode in COLLECTIVES or op.base_opcode in ("send", "recv"):
        return op.base_opcode
    if op.opcode in ("fusion", "async-start", "async-done"):
        inside = program.opcodes(op) & COLLECTIVES
        if inside:
            return min(inside)
        # a call that is wrapped to read or write slices in place is that call
        called = (member.target for member in program.interior(op) if member.target)
        if target := next(filter(component_of_target, called), None):
            return target
    named = _COUNTED.sub("", op.primitive)
    if named and named not in _ADDED:
        return named
    if op.opcode == "fusion":
        return _root_opcode(op, program)
    return op.base_opcode or _COUNTED.sub("", op.name)


def _root_opcode(op: Op, program: Program) -> str:
    roots = (member.opcode for member in program.interior(op) if member.is_root)
    return next(roots, op.opcode)


_ROUNDS = (
    ("same", ["component", "phase", "scope", "op", "shape", "operand_shapes"]),
    ("other scope", ["component", "phase", "op", "shape", "operand_shapes"]),
    ("other shape", ["component", "phase", "scope", "op"]),
    ("other scope and shape", ["component", "phase", "op"]),
    ("same kernel", ["component", "phase", "role", "family"]),
)
ONLY_BASE, ONLY_NEW = "only in base", "only in new"
_NAMES = ("scope", "op", "shape")


@dataclass(frozen=True)
class Alignment:
    """Rows of a comparison, and the row of each op of the two sides, int64.

    ``rows`` has component, phase, scope, op, shape (``a → b`` where they differ, empty where they
    are several), and how they were matched.
    """

    rows: pd.DataFrame
    base: np.ndarray
    new: np.ndarray


def aligned(base: pd.DataFrame, new: pd.DataFrame) -> Alignment:
    """Match the rows of `SIDE_OPS` of two runs."""
    places = (np.full(len(base), -1), np.full(len(new), -1))
    match: list[str] = []
    for name, keys in _ROUNDS:
        _settle(base, new, places, keys, match, name)
    for ops, place, name in ((base, places[0], ONLY_BASE), (new, places[1], ONLY_NEW)):
        left = np.flatnonzero(place < 0)
        own = ops.iloc[left].groupby(_ROUNDS[0][1], sort=True).ngroup().to_numpy()
        place[left] = own + len(match)
        match += [name] * (int(own.max(initial=-1)) + 1)
    return Alignment(_described(base, new, places, match), *places)


def _settle(
    base: pd.DataFrame,
    new: pd.DataFrame,
    places: tuple[np.ndarray, np.ndarray],
    keys: list[str],
    match: list[str],
    name: str,
) -> None:
    """Number the keys that both sides have left, behind the rows that there are."""
    left = [np.flatnonzero(place < 0) for place in places]
    sides = [ops.iloc[rows] for ops, rows in zip((base, new), left, strict=True)]
    if "family" in keys:
        left = [
            rows[(side["family"] != "").to_numpy()] for rows, side in zip(left, sides, strict=True)
        ]
        sides = [ops.iloc[rows] for ops, rows in zip((base, new), left, strict=True)]
    both = pd.concat([side[keys] for side in sides], ignore_index=True)
    codes = both.groupby(keys, sort=True).ngroup().to_numpy()
    of_base, of_new = codes[: len(left[0])], codes[len(left[0]) :]
    shared = np.intersect1d(of_base, of_new)
    for place, rows, own in ((places[0], left[0], of_base), (places[1], left[1], of_new)):
        is_shared = np.isin(own, shared)
        place[rows[is_shared]] = np.searchsorted(shared, own[is_shared]) + len(match)
    match += [name] * len(shared)


def _described(
    base: pd.DataFrame,
    new: pd.DataFrame,
    places: tuple[np.ndarray, np.ndarray],
    match: list[str],
) -> pd.DataFrame:
    rows = pd.DataFrame({"match": pd.Series(match, dtype="str")})
    listed = pd.concat([base.assign(row=places[0]), new.assign(row=places[1])])
    first = listed.groupby("row")[["component", "phase", "role"]].first()
    rows = rows.join(first)
    for name in _NAMES:
        sides = [
            _one_of(ops[name], place, len(rows))
            for ops, place in zip((base, new), places, strict=True)
        ]
        rows[name] = [_joined(b, n) for b, n in zip(*sides, strict=True)]
    return rows.astype(dict.fromkeys([*_NAMES, "component", "phase", "role"], "str"))


def _one_of(values: pd.Series, place: np.ndarray, rows: int) -> list[str | None]:
    """The one value of each row, empty where there are several; None where the side has none."""
    groups = values.groupby(place)
    first = groups.first().where(groups.nunique() == 1, "")
    return [first.get(row) for row in range(rows)]


def _joined(base: str | None, new: str | None) -> str:
    found = [text for text in (base, new) if text is not None]
    if "" in found:
        return ""
    return " → ".join(dict.fromkeys(found))
