"""Question: how is what a trace says besides its frames written down?

Strict JSON: a figure that is not finite is null. Text keeps even what UTF-8 cannot hold (file names
of any bytes), as JSON escapes. Keys that are not known are passed over, so the format may grow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from reprlib import repr as shown
from typing import get_args

from moeprof.errors import TraceError
from moeprof.tables.trace import HostClock, TraceMeta, TrustCheck, Verdict

FAMILY = "moeprof.trace/"
SCHEMA = f"{FAMILY}1"

Json = Mapping[str, object]


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
    trust: tuple[TrustCheck, ...]
    tables: tuple[StoredTable, ...]


def to_json(record: Record) -> str:
    """The text of ``trace.json``."""
    meta = {**asdict(record.meta), "clocks": [_clock_json(c) for c in record.meta.clocks]}
    document = {
        "schema": SCHEMA,
        "meta": meta,
        "trust": [asdict(check) for check in record.trust],
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
            _meta(_mapping(document["meta"])),
            tuple(_check(_mapping(item)) for item in _items(document["trust"])),
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


def _meta(found: Json) -> TraceMeta:
    return TraceMeta(
        path=_text(found["path"]),
        platform=_text(found["platform"]),
        hosts=tuple(map(_text, _items(found["hosts"]))),
        devices=_whole(found["devices"]),
        jax_version=_text(found["jax_version"]),
        events=_whole(found["events"]),
        notes=tuple(map(_text, _items(found["notes"]))),
        run_folder=_text(found["run_folder"]),
        are_steps_numbered_by_script=found["are_steps_numbered_by_script"] is True,
        clocks=tuple(_clock(_mapping(clock)) for clock in _items(found["clocks"])),
    )


def _clock_json(clock: HostClock) -> Json:
    drift = clock.drift_ppb if math.isfinite(clock.drift_ppb) else None
    return {**asdict(clock), "drift_ppb": drift}


def _clock(found: Json) -> HostClock:
    drift = found["drift_ppb"]
    return HostClock(
        host=_text(found["host"]),
        offset_ns=_whole(found["offset_ns"]),
        drift_ppb=float(drift) if isinstance(drift, (int, float)) else math.nan,
        residual_ns=_whole(found["residual_ns"]),
        pairs=_whole(found["pairs"]),
    )


def _check(found: Json) -> TrustCheck:
    verdicts: tuple[Verdict, ...] = get_args(Verdict)
    verdict = next((v for v in verdicts if v == found["verdict"]), None)
    if verdict is None:
        raise TypeError(f"verdict {shown(found['verdict'])}")
    return TrustCheck(_text(found["check"]), verdict, _text(found["detail"]))


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
