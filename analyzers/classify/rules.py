"""Which of a user's rules match which ops, and what is wrong with a rule that cannot be used.

Regular expressions are RE2's, through pyarrow, which has it: they take time linear in the text,
where Python's own may take for ever on a pattern such as ``(a+)+$``, and nothing can stop them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.classify.components import LOOPS, MEANINGS
from moeprof.analyzers.classify.names import scopes
from moeprof.analyzers.classify.told import best_frames, best_name, source_of
from moeprof.errors import SpecError
from moeprof.hlo.program import Frame, Op, Program
from moeprof.tables.name_rule import NameRule, NameRules, op_name_parts

NAMEABLE = tuple(n for n in MEANINGS if n not in ("loop_gaps", "other", "unattributed"))
"""Components that a rule may give: those that say which part of the step an op is."""
CONDITIONS = ("scope", "function", "source", "op")
_SOURCE = re.compile(r"(?:\./)*(?P<file>[^:]+)(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?)?")
_BEYOND = ("perl operator", "escape sequence")  # what RE2 calls lookarounds and back references
_GIVEN = frozenset({"parameter", "constant"})  # they do no work

Bools = npt.NDArray[np.bool_]
Known = TypeVar("Known", str, tuple[Frame, ...])


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


class Subjects:
    """The ops of a program as rules look at them: a condition reads each distinct text once."""

    def __init__(self, ops: Sequence[Described]) -> None:
        """Look at these, in this order."""
        self.count = len(ops)
        self._ops = _Texts((op.op for op in ops), lambda name: (name,))
        self._paths = _Texts((op.op_name for op in ops), _paths)
        self._functions = _Texts(
            (op.frames for op in ops), lambda frames: tuple(f".{f.function}" for f in frames)
        )
        self._sources = _Texts((op.source for op in ops), lambda line: (line,) if line else ())

    def holding(self, rule: NameRule) -> Bools:
        """On which of the ops every condition of a rule holds."""
        parts = [self.meeting(name, text) for name, text in rule.conditions.items()]
        return np.logical_and.reduce(parts) if parts else np.zeros(self.count, bool)

    def meeting(self, condition: str, text: str) -> Bools:
        """On which of the ops one condition holds."""
        if condition == "op":
            return self._ops.where(lambda names: searched(names, rf"\A(?:{text})\z"))
        if condition == "scope":
            return self._paths.where(lambda paths: searched(paths, text))
        if condition == "function":  # be it in a class or another function
            return self._functions.where(
                lambda names: np.array([name.endswith(f".{text}") for name in names], bool)
            )
        wanted = lines_of(text)
        return self._sources.where(lambda lines: np.array([_is_at(wanted, x) for x in lines], bool))

    def texts(self, condition: str) -> Sequence[str]:
        """The distinct texts that a condition looks at; none where the profile keeps no such."""
        return {
            "op": self._ops.texts,
            "scope": self._paths.texts,
            "function": self._functions.texts,
            "source": self._sources.texts,
        }[condition]


class _Texts(Generic[Known]):
    """Distinct texts of what ops have of one kind, and which of them each op has."""

    def __init__(self, of_ops: Iterable[Known], read: Callable[[Known], tuple[str, ...]]) -> None:
        places: dict[Known, int] = {}
        self._of_op = np.array([places.setdefault(known, len(places)) for known in of_ops], int)
        numbers: dict[str, int] = {}
        pairs = [
            (place, numbers.setdefault(text, len(numbers)))
            for known, place in places.items()
            for text in read(known)
        ]
        self._owners = np.array([owner for owner, _ in pairs], int)
        self._numbers = np.array([number for _, number in pairs], int)
        self._count = len(places)
        self.texts = list(numbers)

    def where(self, tell: Callable[[list[str]], Bools]) -> Bools:
        """Which ops have a text of which `tell` says so."""
        is_told = tell(self.texts)[self._numbers] if self.texts else np.zeros(0, bool)
        found = np.zeros(self._count, bool)
        found[self._owners[is_told]] = True
        return found[self._of_op] if len(self._of_op) else np.zeros(0, bool)


def searched(texts: Sequence[str], pattern: str) -> Bools:
    """Which texts a regular expression is found in.

    Raises:
        ValueError: it is none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.match_substring_regex(pa.array(texts, pa.string()), pattern)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def fault_of(rule: NameRule) -> str:
    """Why a rule cannot be used, as "expected …, found …"; empty where it can."""
    if rule.component not in NAMEABLE:
        import difflib  # for the message alone

        near = difflib.get_close_matches(rule.component, NAMEABLE, 3, 0.5) or NAMEABLE
        return f"component: expected a part, as {', '.join(near)}, found {rule.component!r}"
    if not rule.conditions:
        return "expected one of scope, function, source and op, found none"
    for name in ("scope", "op"):
        if fault := _fault_of_pattern(getattr(rule, name)):
            return f"{name}: expected a regular expression, found {fault}"
    if rule.source and lines_of(rule.source) is None:
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


def lines_of(source: str) -> Lines | None:
    """The lines that a rule names; None where it names none."""
    found = _SOURCE.fullmatch(source)
    if found is None:
        return None
    first = int(found["first"]) if found["first"] else 0
    last = int(found["last"]) if found["last"] else first if found["first"] else 1 << 62
    is_range = first <= last and (found["first"] is None or first > 0)
    return Lines(found["file"], first, last) if is_range else None


def _fault_of_pattern(pattern: str) -> str:
    """What is found in the place of a regular expression, and why; empty where it is one."""
    try:
        searched([""], pattern)
    except ValueError as error:
        reason = str(error).partition("regular expression: ")[2] or "no text of UTF-8"
        reason = reason.partition(": ")[0]  # then the pattern again
        if any(word in reason for word in _BEYOND):
            reason += "; look-around and back references are not taken, as they may run for ever"
        return f"{pattern!r}: {reason}"
    return ""


def _paths(op_name: str) -> tuple[str, ...]:
    """The op_name, and the path of each of its parts without the wrappers of derivatives.

    So ``moe/dispatch`` is found in ``transpose(jvp(moe))/dispatch/add`` as well.
    """
    if not op_name:
        return ()
    paths = zip(scopes(op_name), op_name_parts(op_name), strict=True)
    plain = ("/".join([*path, part.rpartition("/")[2].rstrip(")")]) for path, part in paths)
    return (op_name, *plain)


def _is_at(wanted: Lines | None, line: str) -> bool:
    file, _, number = line.rpartition(":")
    if wanted is None or not file:
        return False
    is_file = file == wanted.file or file.endswith(f"/{wanted.file}")
    return is_file and wanted.first <= int(number) <= wanted.last


@dataclass(frozen=True)
class Matches:
    """``deciding`` is the place of the first rule that matches an op, by program and op.

    ``matching`` are the places of all rules that match any op, ``first`` of those that do so first.
    ``subjects`` are what they looked at, by program.
    """

    deciding: Mapping[int, Mapping[str, int]]
    matching: frozenset[int]
    first: frozenset[int]
    subjects: Mapping[int, Subjects]


def matches_of(programs: Mapping[int, Program], names: NameRules) -> Matches:
    """The rules that match each op.

    Raises:
        SpecError: a rule cannot be used.
    """
    require_usable(names.rules, names.file)
    deciding: dict[int, dict[str, int]] = {}
    matching: set[int] = set()
    subjects: dict[int, Subjects] = {}
    for module, program in programs.items() if names.rules else ():
        ops = [op for op in program.ops.values() if op.opcode not in _GIVEN]
        mine = subjects[module] = Subjects([_described(program, op) for op in ops])
        is_loop = np.array([op.opcode in LOOPS for op in ops], bool)
        first = np.full(len(ops), -1)
        for place, rule in enumerate(names.rules):
            holds = mine.holding(rule)
            if not rule.op:  # a loop's own time is that of no op of its body: only by its name
                holds &= ~is_loop
            if holds.any():
                matching.add(place)
                first[holds & (first < 0)] = place
        found = zip(ops, first.tolist(), strict=True)
        deciding[module] = {op.name: place for op, place in found if place >= 0}
    used = frozenset(place for found in deciding.values() for place in found.values())
    return Matches(deciding, frozenset(matching), used, subjects)


def named_by(names: NameRules, matches: Matches) -> dict[int, dict[str, str]]:
    """The component of each op that a rule names, by program and op: that of its first rule."""
    return {
        module: {op: names.rules[place].component for op, place in found.items()}
        for module, found in matches.deciding.items()
    }


def _described(program: Program, op: Op) -> Described:
    """An op as it is known: a fusion by its product; asynchronous work by what it runs."""
    known = op
    if op.opcode not in LOOPS and not best_name(program, op) and not best_frames(program, op):
        known = program.started(op) or op
    frames = best_frames(program, known)
    return Described(op.name, best_name(program, known), frames, source_of(frames))
