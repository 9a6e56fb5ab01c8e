"""Whether what lies in a run folder is of the run whose profiles are read.

A record is compared with the profiles by their dates, which are of one clock, and by the files that
it names; what processes wrote besides by the id of the recording, and where an older version gave
none by host and dates. What contradicts is left out, with what was compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from moeprof.ingest.sources.processes import MOST_PROCESSES
from moeprof.ingest.sources.run_record import read_meta
from moeprof.ingest.sources.sessions import host_name

RECORD = "meta.json"
_SLACK_NS = 5_000_000_000
"""The record's dates are taken around the run, by a clock that may be set meanwhile."""
_STEPPED_NS = 1_000_000_000
"""Window and profile are dated within a call of each other; a clock is set by less than this."""
_MOST_NAMED = 3
_LETTERS = 8

Place = tuple[str, str]
"""Session and name of a profile without its endings, which it keeps when it is packed."""


class Dated(NamedTuple):
    """A profile and when it recorded, in ns since 1970; 0 where it does not say."""

    file: Path
    start_ns: int
    stop_ns: int


@dataclass(frozen=True)
class Beside:
    """What lies beside the profiles. ``run`` is the folder whose files may be used.

    ``has_record`` tells whether a record is there, ``faults`` why it is of another run, ``strays``
    which other files are and why; ``left_out`` names all files that are not used. ``dated`` counts
    profiles whose dates lie in the run's time, of ``profiles``. ``recordings`` are the ids that the
    processes of the record state, ``absent`` the processes that it lacks, as one that was killed.
    """

    run: Path | None
    has_record: bool = False
    faults: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    dated: int = 0
    profiles: int = 0
    recordings: frozenset[str] = frozenset()
    absent: frozenset[int] = frozenset()

    @property
    def is_of_other_run(self) -> bool:
        """Whether the record is, so that nothing beside the profiles may be used."""
        return bool(self.faults)


NOTHING_BESIDE = Beside(None)


class _Process(NamedTuple):
    """One process of the record; dates are 0 where they are not stated, an end that is not yet."""

    number: int
    host: str
    recording: str
    started_ns: int
    ended_ns: int
    files: frozenset[Place]
    windows: Mapping[Place, tuple[int, int]]
    window_count: int


def beside(run: Path | None, profiles: Sequence[Dated]) -> Beside:
    """What lies in the run folder, compared with these profiles.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    meta = read_meta(run) if run is not None else None
    if run is None or meta is None:
        return Beside(run, profiles=len(profiles))
    processes = [_process(row, meta) for row in _maps(meta.get("processes"))]
    found = [_compared(profile, processes) for profile in profiles]
    faults = tuple(fault for fault in found if fault)
    recordings = frozenset(one.recording for one in processes if one.recording)
    dated = sum(fault == "" for fault in found)
    if faults:
        return Beside(None, True, faults, (), (RECORD,), dated, len(profiles), recordings)
    strays = {name: why for one in processes for name, why in _strays(run, one)}
    return Beside(
        run,
        True,
        strays=tuple(f"{name} {why}" for name, why in strays.items()),
        left_out=tuple(strays),
        dated=dated,
        profiles=len(profiles),
        recordings=recordings,
        absent=_expected(meta) - {one.number for one in processes},
    )


def all_beside(found: Sequence[Beside]) -> Beside:
    """What lies in several folders of one run; ``run`` is the first whose files may be used."""
    if len(found) == 1:
        return found[0]
    return Beside(
        next((one.run for one in found if one.run is not None), None),
        any(one.has_record for one in found),
        tuple(fault for one in found for fault in one.faults),
        tuple(stray for one in found for stray in one.strays),
        tuple(name for one in found for name in one.left_out),
        sum(one.dated for one in found),
        sum(one.profiles for one in found),
        frozenset().union(*(one.recordings for one in found)),
        frozenset.intersection(*(one.absent for one in found)),
    )


def _expected(meta: Mapping[str, object]) -> frozenset[int]:
    return frozenset(range(min(_stamp(meta.get("expected_processes")), MOST_PROCESSES)))


def _compared(profile: Dated, processes: Sequence[_Process]) -> str | None:
    """Why the record is not of this profile; empty where dates agree, None where none are there."""
    place = _place(profile.file.resolve())
    named = [one for one in processes if place in one.files]
    found = [_in_time(profile, place, one) for one in named or processes]
    if "" in found:
        return ""
    faults = [fault for fault in found if fault]
    known = ["/".join(file) for one in processes for file in sorted(one.files)]
    if named or not known:
        return faults[0] if faults else None
    names = f"the record names {_listed(known)}, not {'/'.join(place)}"
    return f"{names}, and {faults[0]}" if faults else f"{names}, and states no dates to compare"


def _in_time(profile: Dated, place: Place, process: _Process) -> str | None:
    """What dates contradict; empty where none do, None where there are none to compare."""
    if profile.start_ns <= 0:
        return None
    stop_ns = profile.stop_ns or profile.start_ns
    recorded = f"the profile records {_span(profile.start_ns, stop_ns)}"
    if place in process.windows:
        opened_ns, closed_ns = process.windows[place]
        if closed_ns < profile.start_ns - _STEPPED_NS or opened_ns > stop_ns + _STEPPED_NS:
            return f"{recorded}, the record of its window is of {_span(opened_ns, closed_ns)}"
    is_early = profile.start_ns < process.started_ns - _SLACK_NS
    is_late = bool(process.ended_ns) and stop_ns > process.ended_ns + _SLACK_NS
    if is_early or is_late:
        return (
            f"{recorded}, the run of the record was {_span(process.started_ns, process.ended_ns)}"
        )
    return "" if process.started_ns or process.ended_ns or place in process.windows else None


def _strays(run: Path, process: _Process) -> Iterator[tuple[str, str]]:
    """Files that this process wrote by their names, and why another one did."""
    for folder in ("host", "memory"):
        name = f"{folder}/p{process.number}.json"
        told = _read(run / name)
        why = _is_of_other(told, process) if told else ""
        if why:
            yield name, why


def _is_of_other(told: Mapping[str, object], process: _Process) -> str:
    recording = _text(told.get("recording"))
    if recording != process.recording:
        own = named_recording(process.recording)
        return f"is of {named_recording(recording)}, the record of {own}"
    if recording:
        return ""
    host = _text(told.get("host"))
    if host and process.host and host != process.host:
        return f"is of host {host}, the record of {process.host}"
    windows = told.get("windows")
    if isinstance(windows, list) and len(windows) != process.window_count:
        return f"has {len(windows)} windows, the record {process.window_count}"
    dates = [*_dates(told, "gc_pauses", "start_epoch_ns")]
    dates += _dates(told, "compile_events", "end_epoch_ns")
    for window in _maps(windows):
        dates += _dates(window, "states", "epoch_ns")
    if not dates or not process.started_ns:
        return ""
    last_ns = process.ended_ns or max(dates)
    if min(dates) < process.started_ns - _SLACK_NS or max(dates) > last_ns + _SLACK_NS:
        run = _span(process.started_ns, process.ended_ns)
        return f"is of {_span(min(dates), max(dates))}, the run of the record was {run}"
    return ""


def named_recording(recording: str) -> str:
    """A recording by the first letters of its id, which are random."""
    return f"recording {recording[:_LETTERS]}" if recording else "a recording without an id"


def _dates(told: Mapping[str, object], key: str, date: str) -> Iterator[int]:
    found = (_stamp(row.get(date)) for row in _maps(told.get(key)))
    yield from (stamp for stamp in found if stamp)


def _process(row: Mapping[str, object], meta: Mapping[str, object]) -> _Process:
    windows = _maps(row.get("windows"))
    spans = {
        _place(Path(_text(window.get("file")))): (opened, closed)
        for window in windows
        if (opened := _stamp(window.get("started_epoch_ns")))
        and (closed := _stamp(window.get("ended_epoch_ns")))
    }
    files = [*_list(row.get("files")), *(window.get("file") for window in windows)]
    own = row if row.get("started") else meta
    index = row.get("process_index", 0)
    return _Process(
        number=index if isinstance(index, int) and not isinstance(index, bool) else -1,
        host=_text(row.get("host")),
        recording=_text(row.get("recording")),
        started_ns=_epoch_ns(own.get("started")),
        ended_ns=_epoch_ns(own.get("ended")),
        files=frozenset(_place(Path(file)) for file in files if isinstance(file, str)),
        windows=spans,
        window_count=len(windows),
    )


def _place(profile: Path) -> Place:
    return profile.parent.name, host_name(profile)


def _read(path: Path) -> Mapping[str, object]:
    """Empty where it is not there or damaged: then it tells nothing."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, Mapping) else {}


def _epoch_ns(told: object) -> int:
    """A date with its zone, in ns since 1970; 0 where it is none."""
    try:
        date = datetime.fromisoformat(told) if isinstance(told, str) else None
        if date is None or date.tzinfo is None:
            return 0
        return max(round(date.timestamp() * 1e9), 0)
    except (ValueError, OverflowError):
        return 0


def _span(start_ns: int, end_ns: int) -> str:
    """``2026-04-01 12:00:00.0 to 12:00:01.5`` in UTC; without an end ``from …``."""
    start = _date(start_ns)
    if not end_ns:
        return f"from {start} UTC on"
    end = _date(end_ns)
    return f"{start} to {end.split(' ')[1] if start[:10] == end[:10] else end} UTC"


def _date(at_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-5]
    except (ValueError, OverflowError, OSError):
        return "a date that cannot be"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _stamp(value: object) -> int:
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62
    return value if isinstance(value, int) and is_one else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _maps(value: object) -> list[Mapping[str, object]]:
    return [one for one in _list(value) if isinstance(one, Mapping)]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
