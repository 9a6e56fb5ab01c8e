"""Every key of a configuration is read, known to decide nothing, refused, or named.

The rows of ``moeprof/specs/config_keys.csv`` say what is known of keys that no reader asks for:
``refuse`` decides weights that `ModelSpec` has no place for, ``note`` decides something that is not
in the account, ``silent`` decides neither parameters nor the memory of training. ``unless`` are
values that switch it off, beside null, false, 0 and what is empty. A key that nobody knows is named
where its words suggest parameters or memory.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from importlib.resources import files
from reprlib import repr as shown
from typing import NamedTuple

from moeprof.specs.sources.document import Document, printable

HUGGING_FACE, MAXTEXT = "hf", "maxtext"
_TELLING = (
    *("layer", "expert", "moe", "mlp", "ffn", "size", "dim", "hidden", "head", "rank", "width"),
    *("dtype", "quant", "bias", "dense", "sparse", "shared", "embd", "mtp", "block"),
)
_QUIET = ("token_id", "token_index", "dropout", "pdrop", "loss", "coef", "jitter")
"""Of keys that nobody knows: words of what has no size."""
_MOST_NAMED = 12


class KeyRule(NamedTuple):
    """What is known of one key."""

    verdict: str
    unless: tuple[str, ...]
    effect: str


def refuse_what_decides(document: Document, source: str) -> None:
    """Refuse keys that decide weights for which a model has no place.

    Raises:
        SpecError: there is one that is switched on.
    """
    for key, value in document.values.items():
        rule = _rules(source).get(key)
        if rule is not None and rule.verdict == "refuse" and _is_on(value, rule):
            raise document.wrong(key, f"it absent, as {rule.effect} cannot be counted yet", value)


def tell_the_rest(document: Document, source: str, notes: list[str]) -> None:
    """Add a note on each key that decides something and is not in the account."""
    unknown = []
    for key, value in _leaves(document):
        rule = _rules(source).get(key)
        if rule is not None and rule.verdict == "note" and _is_on(value, rule):
            notes.append(f"{key} {printable(shown(value))}: {rule.effect}")
        elif rule is None and key not in document.asked and _may_decide(key, value):
            unknown.append(f"{printable(key)} {printable(shown(value))}")
    if unknown:
        more = len(unknown) - _MOST_NAMED
        named = ", ".join(unknown[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        notes.append(f"not understood, so not in the account: {named}")


def _leaves(document: Document) -> Iterator[tuple[str, object]]:
    """Keys and values; those of a table of which a reader asks for entries are its entries'."""
    tables = {spelling.partition(".")[0] for spelling in document.asked if "." in spelling}
    for key, value in document.values.items():
        if isinstance(value, Mapping) and key in tables:
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield str(key), value


def _may_decide(key: str, value: object) -> bool:
    words = key.lower()
    return (
        _is_on(value, _ALWAYS)
        and any(word in words for word in _TELLING)
        and not any(word in words for word in _QUIET)
    )


def _is_on(value: object, rule: KeyRule) -> bool:
    """Whether a value is neither empty nor one that switches the key off."""
    return bool(value) and str(value).lower() not in rule.unless


_ALWAYS = KeyRule("note", ("none", "null", "false", "default"), "")


@functools.cache
def _rules(source: str) -> Mapping[str, KeyRule]:
    text = (files("moeprof.specs") / "config_keys.csv").read_text(encoding="utf-8")
    return {
        row["key"]: KeyRule(row["verdict"], tuple(row["unless"].split("|")), row["effect"])
        for row in csv.DictReader(text.splitlines())
        if row["source"] == source
    }
