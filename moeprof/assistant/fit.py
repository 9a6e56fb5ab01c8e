"""Question: how is an answer made to fit in what an assistant can read, with all cuts told?

Lists are cut at their end and long texts in their middle; `cut` of the answer has a line for each,
which also says how to get the rest.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeprof.answers.values import encodable, printable, shortened

LIMIT = 20_000
"""Most bytes of an answer, as JSON in UTF-8."""
Tree = dict[str, Any]
"""An answer: plain values in lists and dictionaries."""

_WIDTHS = (600, 200, 80, 40)
"""Characters that texts are shortened to, step by step, until the answer fits."""
_MANY = 10**12
"""A count as long as any: what a line about a cut may take is reserved with it."""


@dataclass(frozen=True)
class Cuttable:
    """A list of an answer that may be cut at its end.

    Attributes:
        at: the keys that lead to it.
        what: what its items are, in the plural.
        more: how to get those behind the first ``n`` of them; ``n`` counts from the first of all.
        keep: items that stay as long as others can go.
        first: the place of its first item among all, where it is a part.
        of: how many there are in all; by default those that it has.
    """

    at: tuple[str, ...]
    what: str
    more: Callable[[int], str]
    keep: int = 0
    first: int = 0
    of: int | None = None


def text_of(answer: Mapping[str, Any]) -> str:
    """The answer as compact, strict JSON."""
    return encodable(json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def size_of(answer: object) -> int:
    """Bytes of the JSON of a part of an answer."""
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return len(text.encode("utf-8", "replace"))


def fitted(answer: Tree, lists: Sequence[Cuttable], limit: int = LIMIT) -> Tree:
    """`answer` in at most `limit` bytes, with what is missing told under ``cut``.

    Lists are cut in their order: the first goes first. Names come from programs that moeprof does
    not control: what is invisible in them is spelled out, as nobody would see what it tells a
    model.
    """
    answer = _with_texts(answer, printable)
    lists = [each for each in lists if _found(answer, each.at) is not None]
    counts = {each.at: _total(answer, each) for each in lists}
    told = answer | {"cut": _told(answer, lists, counts)}
    if size_of(told) <= limit:
        return told
    room = limit - _reserve(lists)
    made, width = _shrunk(answer, lists, room)
    more = [f"texts longer than {width} characters have … in their middle"] if width else []
    return made | {"cut": [*_told(made, lists, counts), *more]}


def _reserve(lists: Sequence[Cuttable]) -> int:
    """Bytes that the lines about cuts take at most."""
    lines = [_line(each, _MANY, _MANY) for each in lists]
    return size_of({"cut": [*lines, "x" * 80]})


def _shrunk(answer: Tree, lists: Sequence[Cuttable], room: int) -> tuple[Tree, int]:
    """The answer in `room` bytes, and the width of its texts; 0 where they are whole."""
    width = 0
    for keeps_some, next_width in zip((True, True, False, False), _WIDTHS, strict=True):
        made = _with_texts(answer, functools.partial(shortened, width=next_width))
        if size_of(answer) - size_of(made) > 0:
            answer, width = made, next_width
        answer = _without_ends(answer, lists, room, keeps_some=keeps_some)
        if size_of(answer) <= room:
            return answer, width
    raise AssertionError("an answer without its lists is larger than the limit")


def _without_ends(answer: Tree, lists: Sequence[Cuttable], room: int, *, keeps_some: bool) -> Tree:
    for each in lists:
        over = size_of(answer) - room
        if over <= 0:
            return answer
        items = _found(answer, each.at) or []
        kept = len(items)
        while kept > (each.keep if keeps_some else 0) and over > 0:
            kept -= 1
            over -= size_of(items[kept]) + 1  # with its comma
        answer = _replaced(answer, each.at, items[:kept])
    return answer


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_with_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _with_texts(item, change) for key, item in value.items()}
    return value


def _found(answer: Tree, at: Sequence[str]) -> list[Any] | None:
    place: Any = answer
    for key in at:
        if not isinstance(place, dict) or key not in place:
            return None
        place = place[key]
    return place if isinstance(place, list) else None


def _replaced(answer: Tree, at: Sequence[str], items: list[Any]) -> Tree:
    first, *rest = at
    return answer | {first: _replaced(answer[first], rest, items) if rest else items}


def _total(answer: Tree, each: Cuttable) -> int:
    return len(_found(answer, each.at) or []) if each.of is None else each.of


def _told(
    answer: Tree, lists: Sequence[Cuttable], counts: Mapping[tuple[str, ...], int]
) -> list[str]:
    """A line for each list of which something is missing."""

    def lines() -> Iterator[str]:
        for each in lists:
            shown = len(_found(answer, each.at) or [])
            if shown < counts[each.at]:
                yield _line(each, shown, counts[each.at])

    return list(lines())


def _line(each: Cuttable, shown: int, of: int) -> str:
    end = each.first + shown
    which = f"{shown}" if not each.first else f"{each.first + 1} to {end}"
    if each.first and not shown:
        which = "none"
    rest = f"; {each.more(end)}" if end < of else ""
    return f"{each.what}: {which} of {of} are here{rest}"
