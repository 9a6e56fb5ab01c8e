"""What the user's rules named, which parts that changed, and why a rule names nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from moeprof.analyzers.attribution import programs_of, rules_matched, sums_in_steps, sure_rows
from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.components import BY_RULE
from moeprof.analyzers.classify.rules import CONDITIONS, Subjects, searched
from moeprof.columns.grouping import grouped_columns, places_in
from moeprof.columns.table import texts_of
from moeprof.tables.name_rule import NameRule
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

_KINDS = {"scope": "scopes", "function": "functions", "source": "source lines"}
_FEW = 3
_SUGGESTED = 20
"""Rules for which a better text is looked for: who gives more reads no more."""
_WIDEST = 60


class Why(NamedTuple):
    """Why one rule names nothing, and the same of several."""

    one: str
    many: str


_NOTHING = Why("matches nothing", "match nothing")
_TAKEN = Why("matches only what rules before it name", "match only what rules before them name")
_INSIDE = Why(*("names no op that ran by itself in the steps",) * 2)


def told_of_idle(trace: Trace, places: Sequence[int]) -> list[str]:
    """Why the rules at these places name no op time: a few of each reason, then their number."""
    reasons: dict[Why, list[int]] = {}
    for count, place in enumerate(places):
        why = _why(trace, place, suggests=count < _SUGGESTED)
        reasons.setdefault(why, []).append(place)
    return [_told(trace, why, found) for why, found in reasons.items()]


def described_rule(rule: NameRule) -> str:
    """The conditions of a rule; long ones cut."""
    conditions = rule.conditions.items()
    return ", ".join(f"{name} '{_cut(text)}'" for name, text in conditions)


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _told(trace: Trace, why: Why, places: Sequence[int]) -> str:
    rules = trace.meta.names.rules
    named = [f"rule {place + 1} ({described_rule(rules[place])})" for place in places[:_FEW]]
    if len(places) == 1:
        return f"{named[0]} {why.one}"
    more = f"and {len(places) - _FEW} more" if len(places) > _FEW else f"and {named.pop()}"
    return f"{', '.join(named)} {more} {why.many}"


def _why(trace: Trace, place: int, *, suggests: bool) -> Why:
    matches, rule = rules_matched(trace), trace.meta.names.rules[place]
    if place in matches.first:
        return _INSIDE
    if place in matches.matching:
        return _TAKEN
    subjects = list(matches.subjects.values())
    lacks = [name for name in _KINDS if not any(each.texts(name) for each in subjects)]
    if any(name in lacks for name in rule.conditions):
        missing = ", no ".join(kind for name, kind in _KINDS.items() if name in lacks)
        able = " and ".join(name for name in CONDITIONS if name not in lacks)
        said = f"cannot match: this profile keeps no {missing}, so only {able} can"
        return Why(said, said)
    meant = (_meant(subjects, *item) for item in rule.conditions.items() if suggests)
    return next(filter(None, meant), _NOTHING)


def _meant(subjects: Sequence[Subjects], condition: str, text: str) -> Why | None:
    """What to write, where a copied text is no regular expression for itself."""
    if any(each.meeting(condition, text).any() for each in subjects):
        return None
    known = [known for each in subjects for known in each.texts(condition)]
    if condition == "scope" and any(text in path for path in known):
        return _write(condition, re.escape(text))
    if condition == "op" and text in known:
        return _write(condition, re.escape(text))
    if condition == "op" and searched(known, rf"\A(?:{text})").any():
        return _write(condition, f"{text}.*" if "|" not in text else f"({text}).*")
    return None


def _write(condition: str, pattern: str) -> Why:
    one = f"matches nothing, {condition}: '{_cut(pattern)}' would"
    return Why(one, one.replace("matches", "match", 1))


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
    rows, self_ns = sure_rows(work), work["self_ns"]
    total_ns = int(self_ns.sum()) or 1
    share, is_named = self_ns / total_ns, work["evidence"] == BY_RULE
    before = np.where(rows < 0, "", _without_rules(trace).take(rows))
    after = np.where(rows < 0, "", work["component"].array())
    moved = np.flatnonzero(before != after)
    groups = grouped_columns([before[moved], after[moved]])
    sums, first = groups.sum(share[moved]), moved[groups.first]
    order = np.argsort(-sums, kind="stable")
    texts = (column[first][order].tolist() for column in (before, after))
    changes = zip(*texts, sums[order].tolist(), strict=True)
    deciding = _deciding(trace).take(rows)
    sums_ns = np.bincount(deciding + 1, self_ns, len(trace.meta.names.rules) + 1)  # 0 for none
    by_rule = (sums_ns[1:] / total_ns).tolist()
    return Renamed(
        float(share[is_named].sum()),
        tuple(by_rule),
        tuple(changes),
        float(share[moved][~is_named[moved]].sum()),
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
    places = places_in(trace.table("hlo_ops"), classes, "module", "op")
    texts = texts_of([*classes["component"], "unattributed"])
    return np.append(texts[places], "")


def _deciding(trace: Trace) -> np.ndarray:
    """The place of the rule that names each row of `hlo_ops`, int64, and one for none; else -1."""
    return np.fromiter(_places(trace), dtype=np.int64, count=len(trace.table("hlo_ops")) + 1)


def _places(trace: Trace) -> Iterator[int]:
    deciding = rules_matched(trace).deciding
    for module, op in trace.table("hlo_ops").rows("module", "op"):
        yield deciding.get(module, {}).get(op, -1)
    yield -1
