"""Question: what was set differently in two runs, as far as `moeprof capture` wrote it down?

Reads:   what ``meta.json`` of both run folders holds: the command, XLA flags, the mesh, versions.
Returns: one row per setting that differs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pandas as pd

from moeprof.tables.schema import Column, Schema

SETTING_CHANGES = Schema(
    "setting_changes",
    (
        Column("setting", "text", "", "option of the script, XLA flag, axis of the mesh, version"),
        Column("base", "text", "", "as base has it; empty where it does not"),
        Column("new", "text", "", "as new has it; empty where it does not"),
    ),
)


def setting_changes(
    base: Mapping[str, object] | None, new: Mapping[str, object] | None
) -> pd.DataFrame:
    """`SETTING_CHANGES` of two records; empty where capture made one of the runs not."""
    if base is None or new is None:
        return SETTING_CHANGES.frame()
    before, after = dict(_settings(base)), dict(_settings(new))
    rows = [
        {"setting": name, "base": before.get(name, ""), "new": after.get(name, "")}
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return SETTING_CHANGES.frame(rows)


def _settings(record: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Name and value of all that a record says, in the order in which it matters to a reader."""
    argv = record.get("argv")
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    for name, value in (*_options(words[1:]), *_flags(record.get("xla_flags"))):
        yield name, value
    for kind in ("mesh", "versions"):
        found = record.get(kind)
        for name, value in found.items() if isinstance(found, dict) else ():
            yield f"{kind.removesuffix('s')} {name}", str(value)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What a script was given: ``--lr 1`` and ``--lr=1`` are one option, other words have a place.

    An option given twice has both values in one text, as either may be the one that holds.
    """
    found: dict[str, list[str]] = {}
    place = 0
    for before, word in pairwise(["", *words]):
        name, equals, value = word.partition("=")
        if word.startswith("-") and not _is_figure(word):
            found.setdefault(name, []).append(value if equals else "")
        elif before.startswith("-") and "=" not in before and not _is_figure(before):
            found[before][-1] = word
        else:
            found["script" if place == 0 else f"argument {place}"] = [word]
            place += 1
    for name, values in found.items():
        yield name, ", ".join(value or "given" for value in values)


def _is_figure(word: str) -> bool:
    """A word like -1 is a value, no option."""
    return word.lstrip("-").replace(".", "", 1).isdigit()


def _flags(text: object) -> Iterator[tuple[str, str]]:
    """XLA's flags one by one."""
    try:
        words = shlex.split(text) if isinstance(text, str) else []
    except ValueError:  # an open quote: shown as it is
        words = [str(text)]
    for word in words:
        name, equals, value = word.partition("=")
        yield f"XLA_FLAGS {name}", value if equals else "given"
