"""Question: how is what a trace says besides its frames written down?

Strict JSON: a figure that is not finite is null. Text keeps even what UTF-8 cannot hold (file names
of any bytes), as JSON escapes. Keys that are not known are passed over, so the format may grow.
Needs stand by their name, which stays, where their words may change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from reprlib import repr as shown
from typing import TypeVar, get_args

from moeprof.errors import TraceError
from moeprof.tables.law import Figure, Law, Need, Scope, Verdict
from moeprof.tables.name_rule import NameRule, NameRules
from moeprof.tables.trace import HostClock, MeshAxis, TraceMeta

FAMILY = "moeprof.trace/"
SCHEMA = f"{FAMILY}1"

Json = Mapping[str, object]
_Value = TypeVar("_Value", TraceMeta, Law, Scope, HostClock, MeshAxis, NameRules, NameRule)


@dataclass(frozen=True)
class StoredTable:
    """One table of the folder: its rows, and the size of its file."""

    name: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Record:
    """What ``trace.json`` holds."""

    meta: TraceMeta
    trust: tuple[Law, ...]
    tables: tuple[StoredTable, ...]


def to_json(record: Record) -> str:
    """The text of ``trace.json``."""
    document = {
        "schema": SCHEMA,
        "meta": _strict(asdict(record.meta)),
        "trust": [_strict(asdict(check)) for check in record.trust],
        "tables": {t.name: {"rows": t.rows, "bytes": t.size_bytes} for t in record.tables},
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> Record:
    """Read it back.

    Raises:
        TraceError: it is not JSON, of another schema or version, or lacks something; the message
            says what was found, the caller which file it is.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"text that is not JSON ({error})") from error
    _require_schema(document)
    try:
        return Record(
            _value(TraceMeta, document["meta"]),
            tuple(_value(Law, item) for item in _items(document["trust"])),
            tuple(
                StoredTable(name, _whole(_mapping(v)["rows"]), _whole(_mapping(v)["bytes"]))
                for name, v in _mapping(document["tables"]).items()
            ),
        )
    except KeyError as error:
        raise TraceError(f"no value for {error}") from error
    except (TypeError, OverflowError) as error:
        raise TraceError(str(error)) from error


def _require_schema(document: object) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == SCHEMA:
        return
    if isinstance(schema, str) and schema.startswith(FAMILY):
        raise TraceError(f"{schema}: another version of moeprof wrote it, export it again")
    raise TraceError(f"schema {shown(schema)}" if schema is not None else "JSON without a schema")


def _strict(value: object) -> object:
    """The same with null for every figure that JSON has no number for, and needs by name."""
    if isinstance(value, Need):
        return value.name
    if isinstance(value, dict):
        return {key: _strict(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inside) for inside in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _value(kind: type[_Value], found: object) -> _Value:
    """A dataclass out of its fields; one that an earlier release did not write has its default."""
    stated = _mapping(found)
    build: Callable[..., _Value] = kind
    return build(
        **{
            field.name: _READERS[str(field.type)](stated[field.name])
            for field in fields(kind)
            if field.name in stated or field.default is MISSING
        }
    )


def _verdict(value: object) -> str:
    if value not in get_args(Verdict):
        raise TypeError(f"verdict {shown(value)}")
    return str(value)


def _need(value: object) -> Need:
    name = _text(value)
    if name not in Need.__members__:
        raise TypeError(f"need {shown(name)}")
    return Need[name]


def _figure(value: object) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, (int, float)):
        raise TypeError(f"{shown(value)} where a number is expected")
    return float(value)


def _compared(value: object) -> Figure:
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise TypeError(f"{shown(value)} where a number, a text or null is expected")


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{shown(value)} where true or false is expected")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} where text is expected")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{shown(value)} where a whole number is expected")
    return value


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{shown(value)} where a list is expected")
    return value


def _mapping(value: object) -> Json:
    if not isinstance(value, dict):
        raise TypeError(f"{shown(value)} where an object is expected")
    return value


_READERS: Mapping[str, Callable[[object], object]] = {
    "str": _text,
    "int": _whole,
    "float": _figure,
    "bool": _truth,
    "Verdict": _verdict,
    "tuple[str, ...]": lambda value: tuple(map(_text, _items(value))),
    "Figure": _compared,
    "Need | None": lambda value: None if value is None else _need(value),
    "tuple[Need, ...]": lambda value: tuple(map(_need, _items(value))),
    "tuple[Scope, ...]": lambda value: tuple(_value(Scope, v) for v in _items(value)),
    "tuple[HostClock, ...]": lambda value: tuple(_value(HostClock, v) for v in _items(value)),
    "tuple[MeshAxis, ...]": lambda value: tuple(_value(MeshAxis, v) for v in _items(value)),
    "NameRules": lambda value: _value(NameRules, value),
    "tuple[NameRule, ...]": lambda value: tuple(_value(NameRule, v) for v in _items(value)),
}
"""How a field is read, by the type that its dataclass states."""
