"""What the user's rules named, and which parts that changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import programs_of, rules_matched, sums_in_steps, sure_rows
from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.components import BY_RULE
from moeprof.analyzers.unmatched import told_of_idle
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

_MOST_CHANGES = 5
WORTH_TELLING = 0.0005
"""Share of op time that a text shows as more than 0.0 %."""


@dataclass(frozen=True)
class Renamed:
    """Shares of op time in the used steps.

    ``named`` is what rules name, ``by_rule`` that of each rule. ``changes`` have the part without
    the rules and the part with them, the largest first; ``beside`` is what of these no rule names,
    but which goes with its neighbours.
    """

    named: float
    by_rule: tuple[float, ...]
    changes: tuple[tuple[str, str, float], ...]
    beside: float


def renamed(trace: Trace) -> Renamed:
    """What the rules of a trace changed."""
    work = sums_in_steps(trace)
    rows, self_ns = sure_rows(work), work["self_ns"].to_numpy()
    total_ns = int(self_ns.sum()) or 1
    parts = pd.DataFrame(
        {
            "before": np.where(rows < 0, "", _without_rules(trace).take(rows)),
            "after": np.where(rows < 0, "", work["component"].astype("str").to_numpy()),
            "is_named": work["evidence"].eq(BY_RULE).to_numpy(),
            "share": self_ns / total_ns,
        }
    )
    moved = parts[parts["before"] != parts["after"]]
    sums = moved.groupby(["before", "after"])["share"].sum().sort_values(ascending=False)
    pairs = sums.index.to_frame().astype("str")
    changes = zip(pairs["before"], pairs["after"], sums.tolist(), strict=True)
    deciding = _deciding(trace).take(rows)
    sums_ns = np.bincount(deciding + 1, self_ns, len(trace.meta.names.rules) + 1)  # 0 for none
    by_rule = (sums_ns[1:] / total_ns).tolist()
    return Renamed(
        float(parts["share"][parts["is_named"]].sum()),
        tuple(by_rule),
        tuple(changes),
        float(moved["share"][~moved["is_named"]].sum()),
    )


def described_names(trace: Trace) -> tuple[str, ...]:
    """What the rules of a trace name and changed, in one sentence; none without rules."""
    names = trace.meta.names
    if not names.rules:
        return ()
    found = renamed(trace)
    used = sum(share > 0 for share in found.by_rule)
    beside = f", {format_percent(found.beside)} more beside them" * (found.beside >= WORTH_TELLING)
    count = f"{used} of {len(names.rules)} rules name {format_percent(found.named)} of op time"
    idle = told_of_idle(trace, [place for place, share in enumerate(found.by_rule) if not share])
    told = "; ".join([count + beside, _changes(found), *idle])
    return (f"{PurePath(names.file).name}: {told}",)


def _changes(found: Renamed) -> str:
    if not found.changes:
        return "no component changed by them"
    told = [
        f"{old} → {new} {format_percent(share)}"
        for old, new, share in found.changes[:_MOST_CHANGES]
    ]
    if more := found.changes[_MOST_CHANGES:]:
        told.append(f"{len(more)} more {format_percent(sum(share for *_, share in more))}")
    return f"changed: {', '.join(told)}"


def _without_rules(trace: Trace) -> np.ndarray:
    """The component of each row of `hlo_ops` as it would be without rules, and one for none."""
    classes = classify(programs_of(trace))
    rows = trace.hlo_ops[["module", "op"]].merge(classes, on=["module", "op"], how="left")
    return np.append(rows["component"].fillna("unattributed").to_numpy(dtype=object), "")


def _deciding(trace: Trace) -> np.ndarray:
    """The place of the rule that names each row of `hlo_ops`, int64, and one for none; else -1."""
    return np.fromiter(_places(trace), dtype=np.int64, count=len(trace.hlo_ops) + 1)


def _places(trace: Trace) -> Iterator[int]:
    deciding = rules_matched(trace).deciding
    modules, ops = trace.hlo_ops["module"].tolist(), trace.hlo_ops["op"].tolist()
    for module, op in zip(modules, ops, strict=True):
        yield deciding.get(module, {}).get(op, -1)
    yield -1
