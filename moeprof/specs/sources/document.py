"""Question: what does a configuration say under one of several spellings of a key, what besides?

A spelling with dots goes into nested tables. A key whose value is null counts as absent. Every key
is read, known to decide nothing, refused, or named: the rows of ``moeprof/specs/config_keys.csv``
say what is known of keys that no reader asks for. ``refuse`` decides weights that `ModelSpec` has
no place for, ``note`` decides something that is not in the account, ``silent`` decides neither
parameters nor the memory of training. ``unless`` are values that switch it off, beside null, false,
0 and what is empty. A key that nobody knows is named where its words suggest parameters or memory.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple

from moeprof.errors import MoeprofError, SelectionError, SpecError
from moeprof.specs.model import ModelSpec


@dataclass(frozen=True)
class LoadedModel:
    """A model, where it is from, and what its reader has to say.

    ``origin`` is a preset's key or a path. ``notes`` are sentences on what was assumed, taken for
    something, or ignored. ``options`` is what the source says beyond the model, under the source's
    own names (``per_device_batch_size``, ``remat_policy``, ``torch_dtype``, …), unchecked.
    ``sources`` says of each where it is from, if there are several; empty: all are of ``origin``.
    """

    model: ModelSpec
    origin: str
    notes: tuple[str, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def value(self, key: str, convert: Callable[[object, str], Any]) -> Any:
        """An option, converted by a function of the value and the name for a complaint.

        Raises:
            SelectionError: it cannot be, and a word of a command line or a variable says it.
            SpecError: it cannot be, and a file says it.
        """
        source = self.sources.get(key, self.origin)
        if not is_said(source):
            return convert(self.options[key], f"{source}: key {key}")
        try:
            return convert(self.options[key], f"memory --maxtext: {key} of {source}")
        except SpecError as error:
            raise SelectionError(str(error)) from None


COMMAND_LINE = "the command line"
VARIABLE = "variable "
"""What a source is called that is no file; a variable's name follows."""


def is_said(source: str) -> bool:
    """Whether a source is the command itself or its environment: a fault there is wrong usage."""
    return source == COMMAND_LINE or source.startswith(VARIABLE)


MOST_BYTES = 4 * 2**20


def read_text(path: Path, what: str) -> str:
    """The text of a file of at most `MOST_BYTES`; ``what`` names the kind expected.

    Raises:
        SpecError: there is none, it is no regular file, too large, not readable or not UTF-8.
    """
    try:
        if not path.exists():
            raise SpecError(f"{path}: expected {what}, found no such file.")
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise SpecError(f"{path}: expected {what}, found {kind}. Give the file itself.")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise SpecError(
                f"{path}: expected {what} of at most {MOST_BYTES >> 20} MiB, found "
                f"{size / 2**20:.0f} MiB. Is it weights or a trace?"
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path}: expected {what} in UTF-8, found byte {error.object[error.start]:#04x} at "
            f"{error.start}."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(f"{path}: {what} cannot be read ({reason}).") from None


MOST = 10**9
"""No count of a model comes near; what is larger is damage."""
MOST_LAYERS = 10_000
"""Of layers, which are gone through one by one."""


class Document:
    """The keys of one file; remembers which of them were asked for.

    ``per_layer`` is how long a list with one entry for each layer is, None while not known.
    """

    def __init__(
        self, path: str, values: Mapping[str, object], sources: Mapping[str, str] | None = None
    ) -> None:
        """``path`` stands at the start of a complaint, or of a key what ``sources`` has of it."""
        self.path = path
        self.values = values
        self.sources = sources or {}
        self.asked: set[str] = set()
        self.per_layer: int | None = None

    def found(self, spellings: str) -> tuple[str, object] | None:
        """The first of the spellings (apart by blanks) that is there, and its value."""
        hit = None
        for spelling in spellings.split():
            self.asked.update((spelling, spelling.split(".")[0]))
            value = self._at(spelling)
            if value is not None and hit is None:
                hit = (spelling, value)
        return hit

    def count(self, spellings: str, least: int = 0, most: int = MOST) -> int | None:
        """An integer from ``least`` to ``most``; None where no spelling is there.

        A list of equal integers, one for each layer, is that integer.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if isinstance(value, list) and self._says_one(value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"an integer from {least} to {most:,}", value)
        return value

    def _says_one(self, values: list[object]) -> bool:
        """Whether each layer has the same; of another length it is about something else."""
        is_long_enough = self.per_layer is None or len(values) == self.per_layer
        return bool(values) and is_long_enough and all(each == values[0] for each in values)

    def agreeing(self, spellings: str) -> None:
        """Check that all spellings that are there say the same.

        Raises:
            SpecError: two do not.
        """
        said = {key: self._at(key) for key in spellings.split() if self._at(key) is not None}
        for key, value in said.items():
            if isinstance(value, list) and self._says_one(value):
                said[key] = value[0]
        if len({repr(value) for value in said.values()}) > 1:
            (first, value), *others = said.items()
            other = next(key for key, its in others if its != value)
            raise self.wrong(first, f"{shown(said[other])} as {other} says", value)

    def needed(self, spellings: str, most: int = MOST) -> int:
        """An integer from 1 to ``most`` that must be there.

        Raises:
            SpecError: it is not, or the value is something else.
        """
        value = self.count(spellings, 1, most)
        if value is None:
            first, *others = spellings.split()
            also = f" (or {', '.join(others)})" if others else ""
            raise SpecError(f"{self.path}: expected the key {first}{also}, found none. Add it.")
        return value

    def flag(self, spellings: str) -> bool | None:
        """True or false; None where no spelling is there.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def text(self, spellings: str) -> str | None:
        """A text, `printable`; None where no spelling is there.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return printable(value)

    def list_of(self, spellings: str, kind: type, length: int | None = None) -> list[object] | None:
        """A list of one kind, of ``length`` where given; None where no spelling is there.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if (
            not isinstance(value, list)
            or not all(isinstance(each, kind) for each in value)
            or (length is not None and len(value) != length)
        ):
            of = "" if length is None else f"{length} × "
            raise self.wrong(key, f"a list of {of}{kind.__name__}", value)
        return value

    def wrong(self, key: str, expected: str, value: object) -> MoeprofError:
        """The complaint about the value of a key."""
        source = self.sources.get(key, self.path)
        said = f"expected {expected}, found {shown(value)}."
        if is_said(source):
            return SelectionError(f"memory --maxtext: {key} of {source}: {said}")
        return SpecError(f"{source}: key {key}: {said}")

    def _at(self, spelling: str) -> object:
        value: object = self.values
        for name in spelling.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(name)
        return value


def printable(text: str) -> str:
    """A text of a file without what moves a cursor or breaks a line, cut at 100 characters."""
    return "".join(letter for letter in text if letter.isprintable())[:100]


HUGGING_FACE, MAXTEXT = "hf", "maxtext"
_TELLING = (
    *("layer", "expert", "moe", "mlp", "ffn", "size", "dim", "hidden", "head", "rank", "width"),
    *("dtype", "quant", "bias", "dense", "sparse", "shared", "embd", "mtp", "block"),
)
_QUIET = ("token_id", "token_index", "dropout", "pdrop", "loss", "coef", "jitter")
"""Of keys that nobody knows: words of what has no size."""
_MOST_NAMED = 12
NOT_READ = "not understood, so not in the account"
"""How a note on keys begins that no reader asked for and that may decide something."""


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
        notes.append(f"{NOT_READ}: {named}")


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


def known_keys(source: str, verdict: str | None = None) -> frozenset[str]:
    """Keys of which something is known; with a verdict those that have it."""
    rules = _rules(source).items()
    return frozenset(key for key, rule in rules if verdict in (None, rule.verdict))


_ALWAYS = KeyRule("note", ("none", "null", "false", "default"), "")


@functools.cache
def _rules(source: str) -> Mapping[str, KeyRule]:
    text = (files("moeprof.specs") / "config_keys.csv").read_text(encoding="utf-8")
    return {
        row["key"]: KeyRule(row["verdict"], tuple(row["unless"].split("|")), row["effect"])
        for row in csv.DictReader(text.splitlines())
        if row["source"] == source
    }
