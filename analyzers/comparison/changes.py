"""Question: by how much did the op time of each part change, and by what?

Per op, with times per device and step:

    change = waiting + dearer or cheaper calls + more or fewer calls + came + went

Waiting is that of collectives for the last device of their group. Of the rest t = time / calls:
calls that both runs make differ by (t₁ − t₀) · min(c₀, c₁); those that only one makes cost what a
call costs there. So exchanging the runs changes every sign and nothing else.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.comparison.alignment import Alignment, aligned
from moeprof.analyzers.comparison.noise import exact_ns, noise_ns, told
from moeprof.analyzers.comparison.side import Side
from moeprof.tables.schema import Column, Schema

TOTAL, COMPONENT, OP = "total", "component", "op"

PARTS = (
    "wait_change_ns",
    "per_call_change_ns",
    "calls_change_ns",
    "only_base_ns",
    "only_new_ns",
)
"""Columns that add up to ``change_ns``, a wait that is not known counted as 0."""

CHANGES = Schema(
    "changes",
    (
        Column("level", "text", "", "total, component or op"),
        Column("component", "text", "", "part of the step; empty for the total"),
        Column("phase", "text", "", "of an op: forward, recompute, backward or other"),
        Column("op", "text", "", "primitive, collective, target of a custom call, or kernel"),
        Column("scope", "text", "", "scope path; base → new where they differ"),
        Column("shape", "text", "", "result; base → new where they differ, empty for several"),
        Column("match", "text", "", "by what the op of the other run was found"),
        Column("base_ns", "float64", "ns", "self time in base, per device and step"),
        Column("new_ns", "float64", "ns", "self time in new, per device and step"),
        Column("change_ns", "float64", "ns", "new less base"),
        Column("change_share", "float64", "share", "change of base; none where base has nothing"),
        Column("noise_ns", "float64", "ns", "95 % half width of the change; none below 2 steps"),
        Column("verdict", "text", "", "beyond noise, within noise, noise not known"),
        Column("base_calls", "float64", "count", "runs in base, per device and step"),
        Column("new_calls", "float64", "count", "runs in new, per device and step"),
        Column("wait_change_ns", "float64", "ns", "waiting for other devices; none unknown"),
        Column("per_call_change_ns", "float64", "ns", "calls of both runs that cost other than"),
        Column("calls_change_ns", "float64", "ns", "calls that only one run makes, of such ops"),
        Column("only_base_ns", "float64", "ns", "ops that only base has, at most 0"),
        Column("only_new_ns", "float64", "ns", "ops that only new has"),
        Column("base_exposed_ns", "float64", "ns", "of collectives: hidden by no compute, base"),
        Column("new_exposed_ns", "float64", "ns", "of collectives: hidden by no compute, new"),
        Column("replaced", "text", "", "ops that went → ops of the same role that came"),
    ),
)

_SUMMED = [
    *("base_ns", "new_ns", "change_ns", "base_calls", "new_calls"),
    *PARTS,
    *("base_exposed_ns", "new_exposed_ns"),
]
_NAMES = dict.fromkeys(("component", "phase", "op", "scope", "shape", "match", "replaced"), "str")


def changes(base: Side, new: Side) -> pd.DataFrame:
    """`CHANGES`: the total, then components, then ops, each by the size of the change."""
    alignment = aligned(base.ops, new.ops)
    ops = _op_rows(base, new, alignment)
    samples = [
        _summed(side.samples, place, len(ops))
        for side, place in ((base, alignment.base), (new, alignment.new))
    ]
    codes, names = pd.factorize(ops["component"], sort=True)
    parts = ops.groupby(codes)[_SUMMED].sum(min_count=1)
    parts = parts.assign(level=COMPONENT, component=names, replaced=_replaced(ops, names))
    whole = ops[_SUMMED].sum(min_count=1).to_frame().T.assign(level=TOTAL)
    zeros = np.zeros(len(ops), np.int64)
    tables = [
        _judged(whole, *(_summed(side, zeros, 1) for side in samples)),
        _judged(parts, *(_summed(side, codes, len(names)) for side in samples)),
        _judged(ops.assign(level=OP), *samples),
    ]
    if ops.empty:
        return CHANGES.frame()
    joined = _joined(tables)
    return CHANGES.frame({name: joined[name] for name in CHANGES.names})


def _op_rows(base: Side, new: Side, alignment: Alignment) -> pd.DataFrame:
    rows = alignment.rows
    sides = [
        _per_step(side, place, len(rows))
        for side, place in ((base, alignment.base), (new, alignment.new))
    ]
    rows = rows.join(sides[0].add_prefix("base_")).join(sides[1].add_prefix("new_"))
    rows["change_ns"] = rows["new_ns"] - rows["base_ns"]
    return _split(rows)


def _per_step(side: Side, place: np.ndarray, rows: int) -> pd.DataFrame:
    """Sums of a side's ops by row, per device and step; 0 where the side has none of a row."""
    groups = side.ops.groupby(place)
    sums = groups[["ns", "calls", "exposed_ns"]].sum()
    # one collective whose wait is not known makes the row's not known
    sums["wait_ns"] = side.ops["wait_ns"].isna().groupby(place).any().map({True: np.nan, False: 0})
    sums["wait_ns"] += groups["wait_ns"].sum()
    sums["is_exchange"] = groups["is_exchange"].any().astype("float64")
    sums = sums.reindex(range(rows), fill_value=0)
    for name in ("ns", "exposed_ns", "wait_ns"):
        sums[name] = exact_ns(sums[name] / side.shares)
    return sums.assign(calls=sums["calls"] / side.shares)


def _split(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with the columns `PARTS`. What is not waiting is divided among the others."""
    has_both = (rows["base_calls"] > 0) & (rows["new_calls"] > 0)
    is_known = rows["base_wait_ns"].notna() & rows["new_wait_ns"].notna()
    waits = {
        side: rows[f"{side}_wait_ns"].where(is_known, 0.0).to_numpy() for side in ("base", "new")
    }
    rest = {side: rows[f"{side}_ns"].to_numpy() - waits[side] for side in waits}
    calls = {side: rows[f"{side}_calls"].to_numpy() for side in waits}
    rate = {
        side: np.divide(rest[side], calls[side], out=np.zeros(len(rows)), where=calls[side] > 0)
        for side in waits
    }
    common = np.minimum(calls["base"], calls["new"])
    change = rest["new"] - rest["base"]
    per_call = exact_ns((rate["new"] - rate["base"]) * common)
    per_call = np.where(calls["base"] == calls["new"], change, per_call)
    waited = np.where(has_both, waits["new"] - waits["base"], 0.0)
    is_exchange = (rows["base_is_exchange"] + rows["new_is_exchange"]) > 0
    return rows.assign(
        wait_change_ns=np.where(is_exchange & is_known, waited, np.nan),
        per_call_change_ns=np.where(has_both, per_call, 0.0),
        calls_change_ns=np.where(has_both, change - per_call, 0.0),
        only_base_ns=np.where(has_both, 0.0, -rows["base_ns"]) + 0.0,
        only_new_ns=np.where(has_both, 0.0, rows["new_ns"]),
        replaced="",
    )


def _replaced(ops: pd.DataFrame, components: pd.Index) -> list[str]:
    """By component: what went and what of the same role came, of the costliest role."""
    sides = []
    for column in ("only_base_ns", "only_new_ns"):
        own = ops[ops[column] != 0].assign(cost=ops[column].abs())
        own = own.sort_values(["cost", "op"], ascending=[False, True])
        sides.append(own.groupby(["component", "role"]).agg(op=("op", "first"), ns=("cost", "sum")))
    both = sides[0].add_suffix("_went").join(sides[1].add_suffix("_came"), how="inner")
    both = both[both["op_went"] != both["op_came"]]
    both["least"] = np.minimum(both["ns_went"], both["ns_came"])
    best = both.reset_index().sort_values(["least", "role"], ascending=[False, True])
    best = best.drop_duplicates("component").set_index("component")
    texts = best["op_went"] + " → " + best["op_came"]
    return [str(texts.get(name, "")) for name in components]


def _summed(samples: np.ndarray, place: np.ndarray, rows: int) -> np.ndarray:
    sums = np.zeros((rows, samples.shape[1]))
    np.add.at(sums, place, samples)
    return sums


def _judged(rows: pd.DataFrame, base: np.ndarray, new: np.ndarray) -> pd.DataFrame:
    """`rows` with noise and verdict, the largest change first."""
    change, whole = rows["change_ns"].to_numpy(), rows["base_ns"].to_numpy()
    noise = noise_ns(base, new)
    share = np.divide(change, whole, out=np.full(len(rows), np.nan), where=whole > 0)
    judged = rows.assign(noise_ns=noise, verdict=told(change, noise), change_share=share)
    order = judged.assign(size=np.abs(change))
    keys = ["size", *(name for name in ("component", "phase", "op", "scope") if name in order)]
    ascending = [False] + [True] * (len(keys) - 1)
    return order.sort_values(keys, ascending=ascending, ignore_index=True)


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    joined = pd.concat([t.reindex(columns=CHANGES.names) for t in tables], ignore_index=True)
    return joined.assign(**{name: joined[name].fillna("") for name in _NAMES})
