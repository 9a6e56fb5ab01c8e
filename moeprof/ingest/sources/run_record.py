"""Question: what did `moeprof capture` write down about a run: its steps, how it ended?"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from moeprof.ingest.xspace.open_space import unreadable
from moeprof.redact import redacted_record
from moeprof.tables.trace import MeshAxis

RUN_SCHEMA = "moeprof.run/"
_ANNOTATION = "annotation "


@dataclass(frozen=True)
class Counting:
    """How capture counted the steps of a window: by an annotation (empty: by calls), from, to."""

    annotation: str
    first_step: int | None
    last_step: int | None


def read_meta(run: Path) -> Mapping[str, object] | None:
    """``RUN/meta.json``; None where there is none, it is damaged or it is not capture's.

    Secrets that an older version wrote into it are taken out.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        meta = json.loads(_meta_text(run) or "null")
        shown = cast("dict[str, object]", redacted_record(meta))
    except (ValueError, RecursionError):
        return None  # the profile is whole all the same: `meta_damage` says so in the trust record
    if not isinstance(meta, dict) or not str(meta.get("schema", "")).startswith(RUN_SCHEMA):
        return None
    argv = shown.get("argv")
    if shown.get("command") != meta.get("command") and isinstance(argv, list) and argv:
        shown["command"] = shlex.join(["python", *map(str, argv[1:])])
    return shown


def meta_damage(run: Path | None) -> list[str]:
    """What is wrong with ``RUN/meta.json``, for the trust record."""
    try:
        json.loads((_meta_text(run) if run is not None else "") or "null")
    except (ValueError, RecursionError):
        return ["meta.json is not JSON, so how capture counted and ended is not known"]
    return []


def _meta_text(run: Path) -> str:
    """The text of ``RUN/meta.json``; empty where there is none."""
    path = run / "meta.json"
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except OSError as error:
        raise unreadable(path, error) from error


def jax_version_of(meta: Mapping[str, object] | None) -> str:
    """The version of JAX that capture wrote down; empty where there is none."""
    versions = meta.get("versions") if meta is not None else None
    version = versions.get("jax") if isinstance(versions, dict) else None
    return version if isinstance(version, str) else ""


def mesh_of(run: Path | None) -> tuple[MeshAxis, ...]:
    """The axes of the mesh that capture saw, in their order; none where it wrote down none.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    meta = read_meta(run) if run is not None else None
    mesh = meta.get("mesh") if meta is not None else None
    axes = mesh.items() if isinstance(mesh, dict) else ()
    sizes = [(str(name), _integer(size)) for name, size in axes]
    are_known = all(size is not None and size > 0 for _, size in sizes)
    return tuple(MeshAxis(name, size or 1) for name, size in sizes) if are_known else ()


def counting_of(run: Path | None, profile: Path) -> Counting | None:
    """How capture counted the steps of a profile in the run folder; None where it did not."""
    meta = read_meta(run) if run is not None else None
    for window in _windows(meta) if meta is not None else ():
        file = window.get("file")
        if isinstance(file, str) and Path(file).parts[-2:] == place_of(profile):
            return _counting(window)
    return None


def place_of(profile: Path) -> tuple[str, ...]:
    """Session and file name, which a profile keeps when its run is moved or packed."""
    path = profile.resolve()
    return path.parent.name, path.name.removesuffix(".gz")


def _windows(meta: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    processes = meta.get("processes")
    for process in _list(processes):
        windows = process.get("windows") if isinstance(process, dict) else None
        yield from (w for w in _list(windows) if isinstance(w, dict))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _counting(window: Mapping[str, object]) -> Counting:
    counted_by = str(window.get("counted_by", ""))
    is_annotation = counted_by.startswith(_ANNOTATION)
    return Counting(
        annotation=counted_by.removeprefix(_ANNOTATION) if is_annotation else "",
        first_step=_integer(window.get("first_step")),
        last_step=_integer(window.get("last_step")),
    )


def _integer(value: object) -> int | None:
    """A number of a step, which tables hold in 64 bits; None where it is none."""
    is_one = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62
    return value if isinstance(value, int) and is_one else None


# How the processes of a run ended, as `moeprof capture` wrote it down.
#
# Exit codes and what went wrong, process by process; what several say alike is told once.

_NAMED = 4
_HARD = {signal.SIGKILL: "sent by the kernel where the host's memory runs out, and by schedulers"}


@dataclass(frozen=True)
class Ending:
    """One process: its place in the run, its host, its exit code and what went wrong."""

    process: int
    host: str
    exit_code: int | None
    problems: tuple[str, ...]


def endings_of(meta: Mapping[str, object] | None) -> tuple[Ending, ...]:
    """The processes that left a record, in their order; none where there is no record."""
    processes = meta.get("processes") if meta is not None else None
    found = [row for row in _list(processes) if isinstance(row, dict)]
    return tuple(_ending(place, row) for place, row in enumerate(found))


def told(endings: Sequence[Ending]) -> list[str]:
    """What the processes say, each text once, with those of several processes that say it."""
    by_text: dict[str, list[Ending]] = {}
    for ending in endings:
        for text in _texts(ending):
            by_text.setdefault(text, []).append(ending)
    return [f"{_who(whose, len(endings))}{text}" for text, whose in by_text.items()]


def described_exit(code: int) -> str:
    """``exit code 137 (SIGKILL, …)``."""
    try:
        number = signal.Signals(code - 128)
    except ValueError:
        return f"exit code {code}"
    why = f": {_HARD[number]}" if number in _HARD else ""
    return f"exit code {code} ({number.name}{why})"


def described_seconds(seconds: float) -> str:
    """``101 s``, below 10 s with a digit: how long a command ran."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _texts(ending: Ending) -> Iterator[str]:
    yield from ending.problems
    code = ending.exit_code
    if code and not any(f"exit code {code}" in text for text in ending.problems):
        yield f"ended with {described_exit(code)}"


def _who(whose: Sequence[Ending], processes: int) -> str:
    if processes < 2:
        return ""
    if len(whose) == processes:
        return f"all {processes} processes: "
    first = [f"{one.process} ({one.host})" if one.host else f"{one.process}" for one in whose]
    more = f" and {len(first) - _NAMED} more" if len(first) > _NAMED else ""
    word = "process" if len(first) == 1 else "processes"
    return f"{word} {', '.join(first[:_NAMED])}{more}: "


def _ending(place: int, row: Mapping[str, object]) -> Ending:
    index, code, host = row.get("process_index"), row.get("exit_code"), row.get("host")
    return Ending(
        index if isinstance(index, int) else place,
        host if isinstance(host, str) else "",
        code if isinstance(code, int) else None,
        tuple(str(problem) for problem in _list(row.get("problems"))),
    )
