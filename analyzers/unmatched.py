"""Question: why does a rule of the user's name no op time, and what was meant?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from moeprof.analyzers.attribution import rules_matched
from moeprof.analyzers.classify.rules import CONDITIONS, Subjects, searched
from moeprof.tables.name_rule import NameRule
from moeprof.tables.trace import Trace

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
