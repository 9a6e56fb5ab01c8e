"""Which of a user's rules match an op, and what is wrong with a rule that cannot be used."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moeprof.analyzers.classify.components import MEANINGS
from moeprof.analyzers.classify.names import scopes
from moeprof.errors import SpecError
from moeprof.hlo.program import Frame
from moeprof.tables.name_rule import NameRule
from moeprof.tables.op_names import op_name_parts

NAMEABLE = tuple(n for n in MEANINGS if n not in ("loop_gaps", "other", "unattributed"))
"""Components that a rule may give: those that say which part of the step an op is."""
_SOURCE = re.compile(r"(?:\./)*(?P<file>[^:]+)(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?)?")


class Lines(NamedTuple):
    """Lines of a file, both ends included."""

    file: str
    first: int
    last: int


@dataclass(frozen=True)
class Described:
    """What rules look at: the name of an op, its op_name, its frames and its source line."""

    op: str
    op_name: str
    frames: tuple[Frame, ...]
    source: str


def matching(rules: Sequence[NameRule], op: Described) -> tuple[int, ...]:
    """Places of the rules of which every condition holds, in the order of the rules."""
    return tuple(place for place, rule in enumerate(rules) if _holds(rule, op))


def fault_of(rule: NameRule) -> str:
    """Why a rule cannot be used, as "expected …, found …"; empty where it can."""
    if rule.component not in NAMEABLE:
        near = difflib.get_close_matches(rule.component, NAMEABLE, 3, 0.5) or NAMEABLE
        return f"component: expected a part, as {', '.join(near)}, found {rule.component!r}"
    if not rule.conditions:
        return "expected one of scope, function, source and op, found none"
    for name in ("scope", "op"):
        try:
            re.compile(getattr(rule, name))
        except (re.error, RecursionError, OverflowError) as error:
            found = f"{getattr(rule, name)!r} ({error})"
            return f"{name}: expected a regular expression, found {found}"
    if rule.source and _lines(rule.source) is None:
        expected = "file.py, file.py:12 or file.py:12-20"
        return f"source: expected {expected}, found {rule.source!r}"
    return ""


def require_usable(rules: Sequence[NameRule], file: str) -> None:
    """Pass where every rule can be used.

    Raises:
        SpecError: one cannot; the message names it by its number, from 1.
    """
    for number, rule in enumerate(rules, 1):
        if fault := fault_of(rule):
            raise SpecError(f"{file}: rule {number}: {fault}. Correct the rule.")


def _holds(rule: NameRule, op: Described) -> bool:
    return (
        (not rule.op or re.fullmatch(rule.op, op.op) is not None)
        and (not rule.scope or _is_in_scope(rule.scope, op.op_name))
        and (not rule.function or _is_in_function(rule.function, op.frames))
        and (not rule.source or _is_at(rule.source, op.source))
    )


@functools.lru_cache(maxsize=1 << 14)
def _is_in_scope(pattern: str, op_name: str) -> bool:
    return any(re.search(pattern, path) for path in _paths(op_name))


@functools.lru_cache(maxsize=1 << 14)
def _paths(op_name: str) -> tuple[str, ...]:
    """The op_name, and the path of each of its parts without the wrappers of derivatives.

    So ``moe/dispatch`` is found in ``transpose(jvp(moe))/dispatch/add`` as well.
    """
    if not op_name:
        return ()
    paths = zip(scopes(op_name), op_name_parts(op_name), strict=True)
    plain = ("/".join([*path, part.rpartition("/")[2].rstrip(")")]) for path, part in paths)
    return (op_name, *plain)


@functools.lru_cache(maxsize=1 << 14)
def _is_in_function(function: str, frames: tuple[Frame, ...]) -> bool:
    """Whether a frame is of the function, be it in a class or another function."""
    return any(f".{frame.function}".endswith(f".{function}") for frame in frames)


@functools.lru_cache(maxsize=1 << 14)
def _is_at(source: str, line: str) -> bool:
    wanted = _lines(source)
    file, _, number = line.rpartition(":")
    if wanted is None or not file:
        return False
    is_file = file == wanted.file or file.endswith(f"/{wanted.file}")
    return is_file and wanted.first <= int(number) <= wanted.last


def _lines(source: str) -> Lines | None:
    """The lines that a rule names; None where it names none."""
    found = _SOURCE.fullmatch(source)
    if found is None:
        return None
    first = int(found["first"]) if found["first"] else 0
    last = int(found["last"]) if found["last"] else first if found["first"] else 1 << 62
    is_range = first <= last and (found["first"] is None or first > 0)
    return Lines(found["file"], first, last) if is_range else None
