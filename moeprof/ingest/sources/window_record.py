"""What `moeprof capture` wrote down beside a profile: times of steps, the GPUs and the host.

``RUN/meta.json`` has the times, ``RUN/memory/p<k>.json`` the samples of the GPUs. A damaged file
tells nothing; the profile is whole all the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeprof.ingest.sources.run_record import place_of, read_meta
from moeprof.redact import redacted_setting

_MOST_NS = 2**62
_GPUS = ("gpu", "cuda", "rocm")


@dataclass(frozen=True)
class WindowRecord:
    """Of one profile: its process, and nothing or None for what was not recorded.

    Steps are in ns of the host's clock, from start to start: before the window, in it, behind it.
    ``drain_ns`` is how long the devices had work to finish when it opened. ``samples`` are states
    of GPUs by ordinal, in the order of time.
    """

    process: str
    before_ns: tuple[int, ...] = ()
    in_ns: tuple[int, ...] = ()
    after_ns: tuple[int, ...] = ()
    drain_ns: int | None = None
    start_ns: int | None = None
    stop_ns: int | None = None
    samples: tuple[Mapping[str, Mapping[str, object]], ...] = ()
    has_gpus: bool = False


def read_window(
    run: Path | None, profile: Path, left_out: Collection[str] = ()
) -> WindowRecord | None:
    """What is written of the window that a profile holds; None where capture did not make it.

    `left_out` names files of the folder that are of another run.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    meta = read_meta(run) if run is not None else None
    processes = _list(meta.get("processes")) if meta is not None else []
    for process in processes:
        if not isinstance(process, Mapping):
            continue
        for place, window in enumerate(_list(process.get("windows"))):
            if not isinstance(window, Mapping):
                continue
            file = window.get("file")
            if isinstance(file, str) and Path(file).parts[-2:] == place_of(profile):
                index = process.get("process_index", 0)
                named = f"process {index}: " if len(processes) > 1 else ""
                is_own = f"memory/p{index}.json" not in left_out
                record = _record(named, window, _samples(run if is_own else None, index, place))
                return replace(record, has_gpus=process.get("platform") in _GPUS)
    return None


def _record(
    process: str,
    window: Mapping[str, object],
    samples: tuple[Mapping[str, Mapping[str, object]], ...],
) -> WindowRecord:
    times = window.get("step_times")
    times = times if isinstance(times, Mapping) else {}
    return WindowRecord(
        process,
        before_ns=_durations(times.get("before_ns")),
        in_ns=_durations(times.get("in_ns")),
        after_ns=_durations(times.get("after_ns")),
        drain_ns=_duration(window.get("drain_ns")),
        start_ns=_duration(window.get("profiler_start_ns")),
        stop_ns=_duration(window.get("profiler_stop_ns")),
        samples=samples,
    )


def _samples(
    run: Path | None, process: object, place: int
) -> tuple[Mapping[str, Mapping[str, object]], ...]:
    if run is None:
        return ()
    try:
        told = json.loads((run / "memory" / f"p{process}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ()
    windows = _list(told.get("windows")) if isinstance(told, Mapping) else []
    window = windows[place] if place < len(windows) else None
    states = _list(window.get("states")) if isinstance(window, Mapping) else []
    devices = [one.get("devices") for one in states if isinstance(one, Mapping)]
    return tuple(
        {str(key): state for key, state in one.items() if isinstance(state, Mapping)}
        for one in devices
        if isinstance(one, Mapping)
    )


def _durations(value: object) -> tuple[int, ...]:
    found = [_duration(one) for one in _list(value)]
    return tuple(one for one in found if one is not None)


def _duration(value: object) -> int | None:
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_NS
    return value if isinstance(value, int) and is_one else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


# What did `moeprof capture` write down about the host of a process?
#
# ``RUN/host/p<k>.json``: garbage collections and compilations with their dates, and where the
# process ran. A damaged file tells nothing; the profile is whole all the same.

HOST_SCHEMA = "moeprof.host/"
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
