"""What the user's rules named, and which parts that changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import programs_of, rules_matched, sums_in_steps, sure_rows
from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.evidence import BY_RULE
from moeprof.tables.name_rule import NameRule
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

_MOST_CHANGES = 5


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
    by_rule = [
        float(self_ns[deciding == place].sum()) / total_ns
        for place in range(len(trace.meta.names.rules))
    ]
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
    count = f"{used} of {len(names.rules)} rules name {format_percent(found.named)} of op time"
    idle = (
        f"rule {number} ({described_rule(rule)}) {_why_idle(trace, number - 1)}"
        for number, rule in enumerate(names.rules, 1)
        if not found.by_rule[number - 1]
    )
    return (f"{PurePath(names.file).name}: {'; '.join([count, _changes(found), *idle])}",)


def described_rule(rule: NameRule) -> str:
    """The conditions of a rule."""
    return ", ".join(f"{name} '{text}'" for name, text in rule.conditions.items())


def _changes(found: Renamed) -> str:
    if not found.changes:
        return "no component changed by them"
    told = [
        f"{old} → {new} {format_percent(share)}"
        for old, new, share in found.changes[:_MOST_CHANGES]
    ]
    if more := found.changes[_MOST_CHANGES:]:
        told.append(f"{len(more)} more {format_percent(sum(share for *_, share in more))}")
    beside = f" ({format_percent(found.beside)} of op time goes with neighbours of what they name)"
    return f"changed: {', '.join(told)}{beside if found.beside else ''}"


def _why_idle(trace: Trace, place: int) -> str:
    """Why a rule names no op time."""
    found = [
        places for by_op in rules_matched(trace).values() for places in by_op.values()
        if place in places
    ]  # fmt: skip
    if not found:
        return "matches nothing"
    if all(places[0] != place for places in found):
        return "matches only what rules before it name"
    return "names no op that ran by itself in the steps"


def _without_rules(trace: Trace) -> np.ndarray:
    """The component of each row of `hlo_ops` as it would be without rules, and one for none."""
    classes = classify(programs_of(trace))
    rows = trace.hlo_ops[["module", "op"]].merge(classes, on=["module", "op"], how="left")
    return np.append(rows["component"].fillna("unattributed").to_numpy(dtype=object), "")


def _deciding(trace: Trace) -> np.ndarray:
    """The place of the rule that names each row of `hlo_ops`, int64, and one for none; else -1."""
    return np.fromiter(_places(trace), dtype=np.int64, count=len(trace.hlo_ops) + 1)


def _places(trace: Trace) -> Iterator[int]:
    matches = rules_matched(trace)
    modules, ops = trace.hlo_ops["module"].tolist(), trace.hlo_ops["op"].tolist()
    for module, op in zip(modules, ops, strict=True):
        yield matches.get(module, {}).get(op, (-1,))[0]
    yield -1
