"""Question: which processes and ranks did a run have, and of which is there a profile?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moeprof.columns.table import Table
from moeprof.errors import TraceError
from moeprof.ingest.sources.run_record import place_of, read_meta
from moeprof.ingest.xspace.space import number_in

_NUMBERED = re.compile(r"-p(\d+)\.(?:xplane\.pb|trace\.json)(?:\.gz)?$")
MOST_PROCESSES = 100_000
"""Beyond any run there is: a larger number is a date or a hash, or damage."""
_MOST_ALONE = 10_000
"""In the name of a single file, with which no other can be compared."""

RUN_RECORD, FILE_NAMES = "run record", "file names"


@dataclass(frozen=True)
class Processes:
    """``of_file`` is the place in the run of each file's process, -1 where nothing tells it.

    ``expected`` is how many processes the run had, 0 where nothing says so; ``missing`` names
    those that were to record and of which no profile is read, ``not_asked`` those that were not.
    ``told_by`` names what gives the places, empty where nothing does; ``are_chosen`` says that the
    user asked for some hosts alone. ``machines`` are ids of the machines that processes ran on:
    those of one machine share its clock.
    """

    of_file: tuple[int, ...]
    expected: int = 0
    missing: tuple[str, ...] = ()
    not_asked: tuple[str, ...] = ()
    told_by: str = ""
    are_chosen: bool = False
    machines: Mapping[int, str] = field(default_factory=dict)


def processes_of(run: Path | None, files: Sequence[Path], runs: Sequence[Path] = ()) -> Processes:
    """From capture's record, else from the names that capture gives, ``<host>-p<k>.xplane.pb``.

    ``runs`` are all folders of the run where it has several, `run` among them.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    metas = [read_meta(folder) for folder in runs or (run,) if folder is not None]
    written = [p for meta in metas for p in _rows(meta)]
    by_place = {place_of(Path(file)): index for p in written for file, index in _files(p)}
    known = tuple(by_place.get(place_of(file), -1) for file in files)
    is_recorded = bool(known) and min(known) >= 0 and _are_apart(known)
    of_file = known if is_recorded else _numbered(files)
    told_by = RUN_RECORD if is_recorded else FILE_NAMES if min(of_file, default=-1) >= 0 else ""
    stated = [meta.get("expected_processes") for meta in metas if meta is not None]
    expected = max((_count(each, MOST_PROCESSES + 1) for each in stated), default=-1)
    facts = {_index(p): p for p in written}
    machines = {k: str(p["machine"]) for k, p in facts.items() if p.get("machine")}
    if expected < 0 or not of_file or min(of_file) < 0:
        return Processes(of_file, told_by=told_by, machines=machines)
    absent = [k for k in range(expected) if k not in of_file]
    asked = [k for k in absent if facts.get(k, {}).get("records", True)]
    return Processes(
        of_file,
        expected,
        tuple(_named(k, facts) for k in asked),
        tuple(_named(k, facts) for k in absent if k not in asked),
        told_by,
        machines=machines,
    )


def refuse_several_runs(runs: Sequence[Path]) -> None:
    """Nothing, where the records in these folders may be of one run whose processes part.

    Raises:
        TraceError: two of them are not.
    """
    seen: dict[Path, tuple[frozenset[str], frozenset[int]]] = {}
    for run in runs:
        rows = _rows(read_meta(run))
        jobs = frozenset(str(row["job"]) for row in rows if row.get("job"))
        own = jobs, frozenset(map(_index, rows))
        for other, theirs in seen.items():
            if why := _why_apart(own, theirs):
                raise TraceError(
                    f"{other}, {run}: expected folders of one run, found two runs: {why}; "
                    f"`{shlex.join(['moeprof', 'compare', str(other), str(run)])}` compares them"
                )
        seen[run] = own


def _why_apart(
    one: tuple[frozenset[str], frozenset[int]], other: tuple[frozenset[str], frozenset[int]]
) -> str:
    """Why two records, each with ids of its job's capture and processes, are not of one run.

    Empty where nothing contradicts, or a record has no such id: then the law `one_run` says so.
    """
    if not one[0] or not other[0]:
        return ""
    if not one[0] & other[0]:
        return "their records are of two jobs"
    if both := sorted(one[1] & other[1]):
        return f"each has process {both[0]}"
    return ""


def _rows(meta: Mapping[str, object] | None) -> list[dict[str, object]]:
    return [p for p in _list(meta, "processes") if isinstance(p, dict)]


def _files(process: Mapping[str, object]) -> list[tuple[str, int]]:
    windows = [w for w in _list(process, "windows") if isinstance(w, dict)]
    files = [*(w.get("file") for w in windows), *_list(process, "files")]
    return [(file, _index(process)) for file in files if isinstance(file, str)]


def _index(process: Mapping[str, object]) -> int:
    return _count(process.get("process_index", 0), MOST_PROCESSES)


def _count(value: object, below: int) -> int:
    """`value` if it is a whole number from 0 on, below that; else -1."""
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if isinstance(value, int) and is_one else -1


def _list(holder: Mapping[str, object] | None, key: str) -> list[object]:
    found = holder.get(key) if holder is not None else None
    return found if isinstance(found, list) else []


def _numbered(files: Sequence[Path]) -> tuple[int, ...]:
    found = [_NUMBERED.search(file.name) for file in files]
    places = tuple(number_in(match.group(1)) if match else -1 for match in found)
    below = MOST_PROCESSES if len(files) > 1 else _MOST_ALONE
    if places and min(places) >= 0 and max(places) < below and _are_apart(places):
        return places
    return tuple(-1 for _ in files)


def _are_apart(places: Sequence[int]) -> bool:
    return len(set(places)) == len(places)


def _named(index: int, facts: Mapping[int, Mapping[str, object]]) -> str:
    host = facts.get(index, {}).get("host")
    return f"process {index}" + (f" ({host})" if isinstance(host, str) and host else "")


# What is known of the ranks of a run's devices.


@dataclass(frozen=True)
class Ranked:
    """``devices`` is `DEVICES`; ``told_by`` says what ranks follow from, empty where not known.

    ``conflict`` says which sources contradict each other, ``differs`` what a weaker one says that
    was passed over; ``unknown`` are hosts with devices without a rank. ``missing`` are ranks that
    programs of this run name and no file has, of ``expected`` devices, 0 where no program says how
    many. ``of_module`` are the ranks of each program's devices in the order by which its replica
    groups count them, where these are not the first ranks or the program tells them, as
    ``is_assigned`` says of any; a rank that no file has is among them.
    """

    devices: Table
    told_by: str = ""
    conflict: str = ""
    differs: str = ""
    unknown: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    expected: int = 0
    of_module: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    is_assigned: bool = False
