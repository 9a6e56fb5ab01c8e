"""Question: what do the products of the experts compute, and how much of that is asked for?

Forms: ``custom call`` and ``ragged_dot`` multiply each row by its group's matrix. ``dense
fallback`` is how XLA runs `jax.lax.ragged_dot` where it has no kernel: rows masked once per group,
[G, M, K], and one product over all groups, so that G times the FLOPs run that are needed.
``batched dense`` gives every expert the same number of rows, its capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.attribution import labels, programs_of, rules_matched, sure_rows
from moeprof.analyzers.buffers import filled
from moeprof.analyzers.classify.ragged import dense_fallback
from moeprof.analyzers.classify.rules import named_by
from moeprof.analyzers.costs.flops import Product, is_grouped_call, products_of
from moeprof.analyzers.costs.table import COSTS, costs_of
from moeprof.analyzers.window import window
from moeprof.columns.coded import Flags
from moeprof.columns.grouping import Int64s, grouped, places_in
from moeprof.columns.table import Table, isin
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import Shape
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

Float64s = npt.NDArray[np.float64]

CUSTOM_CALL, RAGGED, FALLBACK, BATCHED = (
    *("custom call", "ragged_dot", "dense fallback", "batched dense"),
)
_DEEPEST = 6

SITES = Schema(
    "expert_products",
    (
        Column("module", "int64", "", "program id"),
        Column("op", "text", "", "HLO instruction"),
        Column("form", "text", "", "custom call, ragged_dot, dense fallback, batched dense"),
        Column("groups", "int64", "count", "experts whose matrices are here; -1 where not known"),
        Column("rows", "int64", "rows", "of all groups, that there is room for; -1 unknown"),
        Column("k", "int64", "elements", "width of a row; -1 unknown"),
        Column("n", "int64", "elements", "width of a row of the result; -1 unknown"),
        Column("is_weight_gradient", "bool", "", "whether the product sums over rows"),
        Column("needed", "float64", "FLOP", "2 · rows · K · N; none where not known"),
        Column("dtype", "text", "", "element type of the operands"),
        Column("out_dtype", "text", "", "element type of the result"),
    ),
)


class _Seen(NamedTuple):
    """One product of the experts before its dimensions have names.

    ``together`` is what all products of the op cost by the cost of this one, its largest.
    """

    module: int
    op: str
    form: str
    phase: str
    product: Product | None
    groups: int
    k: int
    together: float


@once
def expert_products(trace: Trace) -> Table:
    """`SITES`: the products of the routed experts that ran.

    Of an op with several products the largest names the dimensions; ``needed`` counts them all.
    A ragged product is one whatever the user calls it: a name changes nothing of what an op does.
    """
    costs, programs = costs_of(trace), programs_of(trace)
    is_experts = (costs["component"] == "grouped_gemm") | _are_ragged(trace, costs)
    costs = costs[is_experts & (costs["kind"] != "other")]
    seen = []
    for module, name, phase in costs.rows("module", "op", "phase"):
        seen.append(_seen(programs[module], module, programs[module].ops[name], phase))
    counts = {module: _row_counts(seen, module) for module in {site.module for site in seen}}
    return SITES.table([_named(site, counts[site.module]) for site in seen])


@once
def grouped_products(trace: Trace) -> Table:
    """Self time of the grouped products by op, step and device."""
    events = window(trace).events
    is_product = (labels(trace)["component"] == "grouped_gemm").take(sure_rows(events))
    keys = ("module", "op", "step", "host", "device")
    work = events.select(*keys, "self_ns")[is_product]
    groups = grouped(work, *keys)
    found: Table = work.select(*keys)[groups.first]
    return found.assign(op=found["op"].array(), self_ns=groups.sum(work["self_ns"]))


def _are_ragged(trace: Trace, costs: Table) -> Flags:
    """Which of `COSTS` that a rule of the user names otherwise are products by groups of rows."""
    named, programs = named_by(trace.meta.names, rules_matched(trace)), programs_of(trace)
    found = [
        op in named.get(module, {}) and _form(programs[module], programs[module].ops[op]) != BATCHED
        for module, op in costs.rows("module", "op")
    ]
    return np.array(found, bool)


def used_rows(trace: Trace) -> Float64s:
    """Rows of each of `expert_products` that held a (token, expert) pair, mean; NaN if not known.

    They are known where the run recorded its routing and the product makes room for as many. How
    many of an expert's tokens its capacity cuts off is not recorded.
    """
    sites = expert_products(trace)
    pairs = filled(trace)[0].pairs.values
    if not len(pairs):
        return np.full(len(sites), np.nan)
    can_hold = (sites["form"] != BATCHED) & (sites["rows"] >= pairs.max())
    return np.where(can_hold, float(pairs.mean()), np.nan)


def costs_that_run(trace: Trace) -> Table:
    """`COSTS` with FLOPs and bytes of the rows that held pairs, where only these are multiplied.

    That is so of custom calls and of ragged_dot; not known where the run recorded no routing. A row
    that is left out saves its K elements and those of its result, N; of a weight's gradient both
    are operands.
    """
    costs, sites = costs_of(trace), expert_products(trace)
    left_out = 1 - _by_room(sites, used_rows(trace))
    item, written = (_item_bytes(sites[name]) for name in ("dtype", "out_dtype"))
    width = sites["k"] * item + sites["n"] * np.where(sites["is_weight_gradient"], item, written)
    at = _sites_at(costs, sites)
    is_grouped = np.append(isin(sites["form"], (CUSTOM_CALL, RAGGED)), False)[at]
    saved = {"flops": sites["needed"] * left_out, "bytes": sites["rows"] * left_out * width}
    left = {
        name: costs[name] - np.where(is_grouped, np.append(sums, 0.0)[at], 0.0)
        for name, sums in saved.items()
    }
    return COSTS.table(costs.assign(**left).columns)


def _by_room(sites: Table, used: Float64s) -> Float64s:
    """Rows that are used by those there is room for; NaN where there is none."""
    return used / np.where(sites["rows"] > 0, sites["rows"], np.nan)


def _sites_at(costs: Table, sites: Table) -> Int64s:
    """The row of `SITES` of each of `COSTS`; -1 for none."""
    return places_in(costs, sites, "module", "op")


def _item_bytes(dtypes: np.ndarray) -> Float64s:
    found = [Shape(dtype, (1,)).known_bytes if dtype else 0.0 for dtype in dtypes]
    return np.array(found, np.float64)


class ModelFlops(NamedTuple):
    """FLOPs of all used steps and devices; ``is_exact`` unless rows are those of the worst case."""

    flops: float
    is_exact: bool


def model_flops(trace: Trace) -> ModelFlops:
    """FLOPs that the model asks for; NaN where something that ran does not tell its own.

    Recomputed products are not asked for, those inside attention's way back included, nor are rows
    of the experts that held no token, or that a dense fallback multiplies by other experts'
    matrices.
    """
    costs, sites, used = costs_of(trace), expert_products(trace), used_rows(trace)
    share = _by_room(sites, used)
    asked = sites["needed"] * np.where(np.isnan(share), 1.0, share)
    at = _sites_at(costs, sites)
    per_run = np.where(at >= 0, np.append(asked, np.nan)[at], costs["flops"] - costs["again"])
    is_asked = costs["phase"] != "recompute"
    total = float((per_run * costs["runs"])[is_asked].sum())
    return ModelFlops(total, not np.isnan(used).any())


def _seen(program: Program, module: int, op: Op, phase: str) -> _Seen:
    form = _form(program, op)
    products = products_of(program, op)
    if not products:
        return _Seen(module, op.name, form, phase, None, -1, -1, 1.0)
    product = max(products, key=lambda product: product.flops)
    groups, k = product.groups, product.k
    if form == FALLBACK and groups == 1:
        groups = _groups_in_k(program, op, product)
        k = k // groups if groups > 0 else k
    together = sum(each.flops for each in products) / product.flops
    return _Seen(module, op.name, form, phase, product, groups, k, together)


def _form(program: Program, op: Op) -> str:
    inside = program.interior(op)
    if any(is_grouped_call(member) for member in inside):
        return CUSTOM_CALL
    if any(member.opcode == "ragged-dot" for member in inside):
        return RAGGED
    is_named = any("ragged_dot" in member.op_name for member in (op, *inside))
    is_dense = is_named or op.name in dense_fallback(program).products
    return FALLBACK if is_dense else BATCHED


def _groups_in_k(program: Program, op: Op, product: Product) -> int:
    """Groups that a product sums over together with K; -1 where the program does not show them.

    [M, G·K] is a view of [M, G, K] and [G·K, N] of [G, K, N]: what the operands are views of has
    the groups as a dimension of its own.
    """
    for member in (m for m in (op, *program.interior(op)) if m.operands):
        if member.opcode not in ("dot", "custom-call"):
            continue
        for name in member.operands[:2]:
            found = _split_k(program, name, product)
            if found > 0:
                return found
    return -1


def _split_k(program: Program, name: str, product: Product) -> int:
    for _ in range(_DEEPEST):
        source = _passed(program, program.ops.get(name))
        if source is None:
            return -1
        for array in source.result.arrays[:1]:
            dims = tuple(d for d in array.dims if d != 1)
            if len(dims) != 3:
                continue
            if dims[0] in (product.m, product.n) and dims[1] * dims[2] == product.k:
                return dims[1]
            if dims[0] * dims[1] == product.k and dims[2] in (product.m, product.n):
                return dims[0]
            if dims[0] * dims[2] == product.k and dims[1] in (product.m, product.n):
                return dims[0]
        if not source.operands:
            return -1
        name = source.operands[0]
    return -1


def _passed(program: Program, op: Op | None) -> Op | None:
    """What a fusion is passed for a parameter of its own; any other op is itself."""
    if op is None or op.opcode != "parameter":
        return op
    caller = program.ops.get(program.callers.get(op.computation, ""))
    if caller is None or caller.opcode != "fusion" or op.parameter >= len(caller.operands):
        return op
    return program.ops.get(caller.operands[op.parameter])


def _row_counts(seen: Sequence[_Seen], module: int) -> frozenset[int]:
    """Numbers of rows that the experts' products of a program have.

    Ahead of the backward pass rows are never summed over: they are the free dimension that all
    products there share, as one of them ends in the experts' inner width, another in the tokens'.
    Where that leaves two, rows are the left operand's, as JAX writes them.
    """
    mine = (s for s in seen if s.module == module and s.phase != "backward")
    ahead = [s.product for s in mine if s.product is not None]
    left = frozenset(product.m for product in ahead)
    shared = [frozenset((product.m, product.n)) for product in ahead]
    common = frozenset.intersection(*shared) if shared else frozenset()
    return common if len(common) == 1 else common & left or left


def _named(site: _Seen, row_counts: frozenset[int]) -> dict[str, object]:
    """Which dimension is rows: the one of that size, else the largest, as rows outnumber widths."""
    known: dict[str, object] = {"module": site.module, "op": site.op, "form": site.form}
    if site.product is None:
        sizes = dict.fromkeys(("groups", "rows", "k", "n"), -1)
        none = {"is_weight_gradient": False, "needed": float("nan"), "dtype": "", "out_dtype": ""}
        return {**known, **sizes, **none}
    m, k, n = site.product.m, site.k, site.product.n
    is_gradient = False
    if m in row_counts or (site.phase != "backward" and n not in row_counts):
        rows, width, out = m, k, n
    elif n in row_counts:
        rows, width, out = n, k, m
    else:
        is_gradient = k in row_counts or k == max(m, k, n)
        rows, width, out = (k, m, n) if is_gradient else (m, k, n)
    total = rows * site.groups if site.form == BATCHED else rows
    is_told = site.form != FALLBACK or site.groups > 0
    return {
        **known,
        "groups": site.groups,
        "rows": total,
        "k": width,
        "n": out,
        "is_weight_gradient": is_gradient,
        "needed": 2 * total * width * out * site.together if is_told else float("nan"),
        "dtype": site.product.dtype,
        "out_dtype": site.product.out_dtype,
    }
