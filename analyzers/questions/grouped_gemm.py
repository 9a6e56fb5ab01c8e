"""Question: how fast are the experts' matrix products, and how much of them is waste?

Returns: one row per call site of the experts' products, the most expensive first.

``rows`` is what the program makes room for, which for dropless routing is the worst case; rows
really used are known only where the run recorded its routing. A product needs 2 · rows · K · N
FLOPs, its groups together. What runs is that, except:

dense fallback   `jax.lax.ragged_dot` without a kernel for it: every row meets every group's matrix,
                 masked, so that G · 2 · rows · K · N run. If time goes with FLOPs, 1 − 1/G of it
                 buys nothing. The masked copies [G, rows, K] that it reads are ops of their own.
custom call,     only the rows that hold tokens are multiplied, so that the rate is known where
ragged_dot       these are; by the worst case it is at most so much.

The best dense product is the fastest of the trace outside the experts, of `LEAST_FLOPS` or more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.buffers import filled
from moeprof.analyzers.costs.grouped import BATCHED, FALLBACK, expert_products, used_rows
from moeprof.analyzers.costs.table import costs_of
from moeprof.analyzers.load.recorded import recorded
from moeprof.analyzers.question import Group, Question
from moeprof.analyzers.window import PER_STEP, Window, hardware_in, window
from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import is_number, written
from moeprof.columns.coded import Flags
from moeprof.columns.grouping import pairs_of, places_in
from moeprof.columns.table import Table, isin
from moeprof.specs.hardware import HardwareSpec
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "grouped_gemm",
    (
        Column("op", "text", "", "HLO instruction"),
        Column("form", "text", "", "custom call, ragged_dot, dense fallback, batched dense"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("groups", "int64", "count", "experts whose matrices are here (G); -1 unknown"),
        Column("rows", "int64", "rows", "rows of all groups that there is room for; -1 unknown"),
        Column("k", "int64", "elements", "width of a row; -1 unknown", "K"),
        Column("n", "int64", "elements", "width of a row of the result; -1 unknown", "N"),
        Column("dtype", "text", "", "element type of the operands"),
        Column("calls", "float64", "count", f"executions, {PER_STEP}"),
        Column("per_step_ns", "float64", "ns", f"self time, {PER_STEP}"),
        Column("tflop_per_s", "float64", "TFLOP/s", "of what runs; none if not known", "TFLOP/s"),
        Column(
            "most_tflop_per_s", "float64", "TFLOP/s", "if every row held data", "TFLOP/s at most"
        ),
        Column("peak_share", "float64", "share", "of the device's peak for its element type"),
        Column("dense_share", "float64", "share", "of the best dense product of the trace"),
        Column("excess", "float64", "ratio", "FLOPs that run / FLOPs of all its rows"),
        Column("used_rows", "float64", "rows", "rows that held data, mean; none if not recorded"),
        Column("padding", "float64", "share", "rows that held none; none if not recorded"),
        Column("run_flops", "float64", "FLOP", f"that run, {PER_STEP}; none if not known"),
        Column("worst_flops", "float64", "FLOP", f"2 · rows · K · N of its calls, {PER_STEP}"),
        Column("used_flops", "float64", "FLOP", f"the same for used rows, {PER_STEP}"),
        Column("wasted_ns", "float64", "ns", f"spent on other groups' matrices, {PER_STEP}"),
        Column("is_weight_gradient", "bool", "", "whether the product sums over rows"),
        Column("out_dtype", "text", "", "element type of the result"),
        Column("module", "int64", "", "program id"),
    ),
)
ASKS = "How fast are the experts' products, and how much of them is waste?"
Float64s = npt.NDArray[np.float64]
LEAST_FLOPS = 10**10
"""Of a dense product to compare with: 10 GFLOP take some 10 µs at full speed."""


@once  # hints ask again
def grouped_gemm(trace: Trace) -> Analysis:
    """Products of the routed experts in the used steps, by call site."""
    view, spec = window(trace), hardware_in(trace)
    best = _best_dense(costs_of(trace), expert_products(trace))
    table = _table(trace, view, spec, best)
    schema = view.stated(SCHEMA)
    headline = _headline(trace, table, spec, best)
    notes = _notes(trace, view, table, spec, best)
    if not len(table):
        return nothing("grouped_gemm", ASKS, schema, *notes, headline=headline)
    return Analysis("grouped_gemm", ASKS, headline, schema, schema.table(table.columns), notes)


def _table(trace: Trace, view: Window, spec: HardwareSpec | None, best: float | None) -> Table:
    sites, costs = expert_products(trace), costs_of(trace).without("dtype")
    sites = sites.assign(used_rows=used_rows(trace))
    of_site, of_cost = pairs_of(sites, costs, "module", "op")
    table = sites[of_site].assign(**costs[of_cost].columns)
    calls = table["runs"] / view.shares
    seconds = _where(table["self_ns"] > 0, table["self_ns"]) / view.shares / 1e9
    worst = table["needed"] * calls
    filled = table["used_rows"] / _where(table["rows"] > 0, table["rows"])
    is_dense = isin(table["form"], (FALLBACK, BATCHED))
    run = np.where(is_dense, table["flops"] * calls, worst * filled)
    most = np.where(is_dense, run, worst)
    peaks = [spec.flops_per_s(dtype) if spec else None for dtype in table["dtype"].tolist()]
    rate = run / seconds / 1e12
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = most / worst
        wasted = table["self_ns"] / view.shares * (1 - 1 / excess)
    return table.assign(
        calls=calls,
        per_step_ns=table["self_ns"] / view.shares,
        tflop_per_s=rate,
        most_tflop_per_s=most / seconds / 1e12,
        peak_share=rate * 1e12 / np.array(peaks, np.float64),
        dense_share=rate / (best if best else np.nan),
        excess=excess,
        excess_flops=excess * worst,
        padding=1 - filled,
        run_flops=run,
        worst_flops=worst,
        used_flops=worst * filled,
        wasted_ns=wasted,
    ).sorted("per_step_ns", "op", falling=["per_step_ns"])


def _where(flags: Flags, values: np.ndarray) -> Float64s:
    """Values where the flags are; else NaN."""
    return np.where(flags, values, np.nan)


def _best_dense(costs: Table, sites: Table) -> float | None:
    """TFLOP/s of the fastest large product that is not the experts'; None without one."""
    is_experts = places_in(costs, sites, "module", "op") >= 0
    is_dense = (costs["kind"] == "gemm") & ~is_experts & (costs["component"] != "grouped_gemm")
    dense = costs[is_dense & (costs["flops"] >= LEAST_FLOPS) & (costs["self_ns"] > 0)]
    rates = dense["flops"] * dense["runs"] / dense["self_ns"] / 1e3
    return float(rates.max()) if len(rates) else None


def _headline(
    trace: Trace, table: Table, spec: HardwareSpec | None, best: float | None
) -> tuple[Metric, ...]:
    if not len(table):
        return (Metric("grouped_gemm_time", None, "ns"), Metric("call_sites", 0, "count"))
    whole = float(table["per_step_ns"].sum())
    run, worst = (_total(table[name]) for name in ("run_flops", "worst_flops"))
    used, excess = (_total(table[name]) for name in ("used_flops", "excess_flops"))
    dtypes = set(table["dtype"].tolist())
    peak = spec.flops_per_s(dtypes.pop()) if spec and len(dtypes) == 1 else None
    rate = run / whole * 1e9 if run is not None and whole else None
    wasted = _total(table["wasted_ns"])
    is_recorded = len(trace.table("received")) and len(trace.table("routing"))
    is_empty = recorded(trace).routing["tokens"] == 0 if is_recorded else ()
    return (
        Metric("grouped_gemm_time", whole, "ns"),
        Metric("call_sites", len(table), "count"),
        Metric("rate", rate / 1e12 if rate is not None else None, "TFLOP/s"),
        Metric("peak_share", rate / peak if rate is not None and peak else None, "share"),
        Metric("best_dense_rate", best, "TFLOP/s"),
        Metric("flops_run_by_needed", excess / worst if excess and worst else None, "ratio"),
        Metric("fallback_wasted_time", wasted, "ns"),
        Metric("padding_share", 1 - used / worst if used and worst else None, "share"),
        Metric("empty_group_share", float(np.mean(is_empty)) if len(is_empty) else None, "share"),
    )


def _total(values: Float64s) -> float | None:
    """The sum; None where one of the values is not known."""
    return None if np.isnan(values).any() else float(values.sum())


def _notes(
    trace: Trace,
    view: Window,
    table: Table,
    spec: HardwareSpec | None,
    best: float | None,
) -> tuple[str, ...]:
    if not len(table):
        return ("none in this trace: no product of routed experts", *view.notes)
    notes = []
    dense = table[table["form"] == FALLBACK]
    if len(dense):
        notes.append(
            f"{len(dense)} of {len(table)} call sites are ragged_dot run as a dense product over "
            "all groups: what is wasted is 1 − 1/G of their time, if time goes with FLOPs; the "
            "masked copies that they read cost more on top (expert_elementwise). A grouped GEMM "
            "kernel avoids both"
        )
    if (table["form"] == BATCHED).any():
        notes.append(
            "batched dense: every expert has as many rows as its capacity; how many of them hold "
            "tokens is not recorded"
        )
    if (table["form"] != BATCHED).any():
        notes += filled(trace)[1]
    if len(unread := table[np.isnan(table["needed"])]):
        notes.append(f"{len(unread)} call site(s) whose sizes nothing states: no FLOPs")
    if spec is None:
        notes.append(
            "the profile names no device that is known: no share of a peak; name one with "
            "--hardware (`moeprof hardware` lists them)"
        )
    if best is None:
        notes.append("best dense product: none in this trace of 10 GFLOP or more")
    return (*notes, *view.notes)


def sentence(document: Document) -> str:
    """Time and rate of the experts' products, and what is known of their waste."""
    found = headline(document, "grouped_gemm")
    if not found.get("call_sites"):
        return ""
    told = [
        f"The experts' products take {written(found['grouped_gemm_time'], 'ns')} {basis(document)}"
    ]
    if found["rate"] is not None:
        told.append(f" at {written(found['rate'], 'TFLOP/s')}")
    if found["peak_share"] is not None:
        told.append(f", {written(found['peak_share'], 'share')} of the device's peak")
    wasted = found["fallback_wasted_time"]
    if is_number(wasted) and wasted:
        told.append(f"; {written(wasted, 'ns')} of it multiplies zeros, as ragged_dot runs dense")
    if found["padding_share"]:
        told.append(f"; {written(found['padding_share'], 'share')} of their rows are padding")
    return f"{''.join(told)}."


QUESTION = Question(
    title="Grouped GEMM",
    group=Group.EXPERTS,
    place=2,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.RECEIVED}),
    schema=SCHEMA,
    run=grouped_gemm,
    sentence=sentence,
)
