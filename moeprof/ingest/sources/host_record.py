"""Question: what did `moeprof capture` write down about the host of a process?

``RUN/host/p<k>.json``: garbage collections and compilations with their dates, and where the process
ran. A damaged file tells nothing; the profile is whole all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moeprof.redact import redacted_setting

HOST_SCHEMA = "moeprof.host/"
_MOST_NS = 2**62
_FACTS = ("cores", "affinity_cores", "numa_nodes", "numa_memory_nodes")


@dataclass(frozen=True)
class Dated:
    """Something that took time; ``start_ns`` counts from 1970, on the host's own clock."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class HostRecord:
    """Garbage collections, compilations, and facts by name as text."""

    collections: tuple[Dated, ...] = ()
    compilations: tuple[Dated, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def read_host_record(run: Path | None, process: int) -> HostRecord:
    """What is written about the process of that place in the run; nothing where it is not known."""
    if run is None or process < 0:
        return HostRecord()
    try:
        told = json.loads((run / "host" / f"p{process}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return HostRecord()
    if not isinstance(told, dict) or not str(told.get("schema", "")).startswith(HOST_SCHEMA):
        return HostRecord()
    return HostRecord(
        tuple(_collections(told.get("gc_pauses"))),
        tuple(_compilations(told.get("compile_events"))),
        dict(_facts(told)),
    )


def _collections(told: object) -> Iterator[Dated]:
    for row in told if isinstance(told, list) else []:
        if isinstance(row, dict):
            start, length = _date(row.get("start_epoch_ns")), _date(row.get("duration_ns"))
            if start is not None and length is not None:
                yield Dated(f"generation {row.get('generation', '?')}", start, length)


def _compilations(told: object) -> Iterator[Dated]:
    for row in told if isinstance(told, list) else []:
        if isinstance(row, dict):
            end, length = _date(row.get("end_epoch_ns")), _date(row.get("duration_ns"))
            if end is not None and length is not None:
                name = f"{row.get('event', '')} {row.get('function', '')}".strip()
                yield Dated(name, end - length, length)


def _facts(told: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key in _FACTS:
        if told.get(key) not in (None, []):
            yield key, _text(told[key])
    environment = told.get("environment")
    for name, value in (environment if isinstance(environment, dict) else {}).items():
        yield f"environment.{name}", redacted_setting(str(name), _text(value))


def _text(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.encode("utf-8", "replace").decode("utf-8")  # tables hold no lone surrogates


def _date(value: object) -> int | None:
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_NS
    return value if isinstance(value, int) and is_one else None
