"""Question: what did this run record? A path in, a `Trace` out, even of a run without a profile."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from moeprof.errors import NoProfileError, SelectionError, TraceError
from moeprof.ingest.assemble import Source, assemble, side_by_side
from moeprof.ingest.host_file import read_file
from moeprof.ingest.joining.common_clock import on_one_start
from moeprof.ingest.joining.ranks import refuse_one_rank_twice
from moeprof.ingest.planes.record import Host
from moeprof.ingest.sources.beside import Beside, Dated, all_beside, beside
from moeprof.ingest.sources.locate import Profiles, hosts_named, locate, together
from moeprof.ingest.sources.processes import Processes, processes_of, refuse_several_runs
from moeprof.ingest.sources.routing import Routing, routing_notes, routing_of_runs
from moeprof.ingest.sources.run_record import (
    Ending,
    counting_of,
    described_exit,
    described_seconds,
    endings_of,
    jax_version_of,
    mesh_of,
    meta_damage,
    read_meta,
    told,
)
from moeprof.ingest.sources.sessions import host_name
from moeprof.ingest.sources.store import brought, fetch, is_copy, is_remote
from moeprof.ingest.sources.window_record import read_window
from moeprof.ingest.trust.surroundings import laws_of_window
from moeprof.recordings import described_newest, newest_recording
from moeprof.tables.law import Law, Need
from moeprof.tables.once import as_given
from moeprof.tables.store import holds_tables, read_tables
from moeprof.tables.trace import FRAMES, Trace, TraceMeta, with_copies, with_meta
from moeprof.tell import Tell, unheard


def open_run(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    session: str | None = None,
    hosts: Sequence[str] = (),
    *,
    urls: Mapping[Path, str] | None = None,
    tell: Tell = unheard,
    as_named: bool = False,
    even_unrecorded: bool = False,
) -> Trace:
    """Read a run folder, a TensorBoard folder, a profile session or one ``.xplane.pb[.gz]``.

    Each may lie in a store: ``s3://bucket/run``. Several paths are of one run whose processes wrote
    to different folders. Of a folder among them without a profile what its record knows is told, of
    a run alone if it is to be read ``even_unrecorded``.
    Of several sessions the newest is read, or the one named `session`, and `TraceMeta.notes` says
    so; of its hosts all, or those named in `hosts`. Damaged files give what can be recovered, and
    the trust record says how much. A folder of tables is opened without reading them yet.
    ``urls`` says of files that are fetched first where they are to be had. ``tell`` hears of every
    file that is read. Of a run that was recorded again the newest recording is read, which a note
    says, unless a session is named or the paths are to be read ``as_named``.

    Raises:
        SelectionError: there is no such session or host.
        NoProfileError: there is no profile at `path`.
        TraceError: there are several runs, or nothing in it can be read.
    """
    given = [path] if isinstance(path, str | PathLike) else list(path)
    if any(is_remote(str(each)) for each in given):
        ways: dict[str, Any] = {"as_named": as_named, "even_unrecorded": even_unrecorded}
        opening = partial(open_run, session=session, hosts=hosts, tell=tell, **ways)
        return _open_copies(list(map(str, given)), opening)
    asked = list(map(Path, given))
    is_exact = as_named or session is not None
    paths = asked if is_exact else [newest_recording(each, asked) for each in asked]
    try:
        trace = _read_run(paths, session, hosts, urls, tell)
    except NoProfileError:
        if not even_unrecorded or len(asked) > 1 or not is_unrecorded(asked[0]):
            raise
        return unrecorded(asked[0])
    notes = list(filter(None, map(described_newest, asked, paths)))
    return with_meta(trace, notes=(*notes, *trace.meta.notes)) if notes else trace


def _open_copies(given: Sequence[str], opening: Callable[..., Trace]) -> Trace:
    """A run that lies in a store, at least in part."""
    with (here := brought(given)).telling():
        trace = opening(here.places, urls=here.urls)
    return with_copies(trace, here, ", ".join(given))


def _read_run(
    paths: Sequence[Path],
    session: str | None,
    hosts: Sequence[str],
    urls: Mapping[Path, str] | None,
    tell: Tell,
) -> Trace:
    """The run in these folders or files."""
    if len(paths) == 1 and holds_tables(paths[0]):
        return open_stored(paths[0], session, hosts)
    found = replace(located(paths, session, hosts), urls=urls or {})
    answers = side_by_side(lambda file: _read(file, found), found.files, tell)
    return assemble(*gathered(answers, found, paths, are_chosen=bool(hosts)))


def gathered(
    answers: Sequence[list[Host] | TraceError],
    found: Profiles,
    paths: Sequence[Path | str],
    *,
    are_chosen: bool,
) -> tuple[Source, list[Host], Routing]:
    """The hosts of all files, named apart and with what the run's record says of them.

    Raises:
        TraceError: no file could be read.
    """
    besides = {folder: beside(folder, _dated(answers, found, folder)) for folder in found.folders}
    around = all_beside(list(besides.values()))
    processes = processes_of(around.run, found.files, [b.run for b in besides.values() if b.run])
    lost = [answer for answer in answers if isinstance(answer, TraceError)]
    of_host: dict[str, Beside] = {}
    read: list[Host] = []
    for at, hosts_read in _named_apart(answers, found.files):
        file = found.files[at]
        own = besides[found.run_of(file)]
        of_host |= {host.name: own for host in hosts_read}
        told_hosts = _with_record(hosts_read, file, own)
        read += told_hosts if len(told_hosts) > 1 else [_of_process(told_hosts[0], processes, at)]
    if not read:
        raise lost[0]
    refuse_one_rank_twice([one[0] for one in answers if isinstance(one, list) and len(one) == 1])
    read, placed = on_one_start(read)
    routing = routing_of_runs(besides)
    damage = (
        *(f"a host is left out: {error}" for error in lost),
        *(line for folder in besides for line in meta_damage(folder)),
        *routing.unread,
    )
    if are_chosen:  # the others are left out because they were not asked for
        processes = replace(processes, missing=(), are_chosen=True)
    notes = (
        *found.notes,
        *(f"{folder}: no profile in it: {told_of(folder)}" for folder in found.silent),
        *placed,
        *(note for folder in besides for note in routing_notes(folder)),
    )
    named = ", ".join(map(str, paths))
    run, mesh = str(around.run or ""), mesh_of(around.run)
    source = Source(named, run, notes, processes, damage, around, of_host, mesh)
    return source, read, routing


def located(paths: Sequence[Path], session: str | None, hosts: Sequence[str]) -> Profiles:
    """Where the profiles of one run are, and which of its folders have only a record.

    Raises:
        TraceError: there is a path without either, no profile at all, or there are several runs.
    """
    found: list[Profiles] = []
    silent: dict[Path, NoProfileError] = {}
    for path in paths:
        try:
            found.append(_located(path, session, hosts))
        except NoProfileError as error:
            if len(paths) == 1 or not is_unrecorded(path):
                raise
            if any(map(path.samefile, silent)):
                raise TraceError(f"{path}: expected each folder once, found it twice") from error
            silent[path] = error
    if silent and not found:
        raise next(iter(silent.values()))
    whole = replace(together(found), silent=tuple(silent))
    refuse_several_runs([folder for folder in whole.folders if folder is not None])
    return whole


def _of_process(host: Host, processes: Processes, at: int) -> Host:
    """With the place of its process in the run, and its machine, where these are known."""
    process = processes.of_file[at]
    if process < 0:
        return host
    return replace(host, process=process, machine=processes.machines.get(process, ""))


def _located(path: Path, session: str | None, hosts: Sequence[str]) -> Profiles:
    try:
        return locate(path, session, hosts)
    except NoProfileError as error:
        if not is_unrecorded(path):
            raise
        raise NoProfileError(_left_by(path)) from error


def _named_apart(
    answers: Sequence[list[Host] | TraceError], files: Sequence[Path]
) -> Iterator[tuple[int, list[Host]]]:
    """The place of each file that was read and its hosts; hosts of one name carry the file's.

    Files of one name, too, carry their path: no two hosts have one name.
    """
    times = Counter(host.name for one in answers if isinstance(one, list) for host in one)
    stems = Counter(map(host_name, files))
    for at, (answer, file) in enumerate(zip(answers, files, strict=True)):
        if isinstance(answer, list):
            stem = host_name(file)
            whose = str(file) if stems[stem] > 1 else stem
            yield (
                at,
                [
                    replace(host, name=f"{whose} {host.name}") if times[host.name] > 1 else host
                    for host in answer
                ],
            )


def _with_version(hosts: list[Host], run: Path | None) -> list[Host]:
    """Not every profiler records the version of JAX; capture does."""
    if run is None or all(host.jax_version for host in hosts):
        return hosts
    version = jax_version_of(read_meta(run))
    return [replace(host, jax_version=host.jax_version or version) for host in hosts]


def _read(file: Path, found: Profiles) -> list[Host] | TraceError:
    """What a file holds, or why it cannot be fetched or read: the other hosts can."""
    try:
        if file in found.urls:
            fetch(found.urls[file], file)
        return read_file(file, counting_of(found.run_of(file), file))
    except TraceError as error:
        return error


def _dated(
    answers: Sequence[list[Host] | TraceError], found: Profiles, folder: Path | None
) -> list[Dated]:
    """When the files of a run folder that were read recorded."""
    return [
        Dated(file, answer[0].started_ns, answer[0].stopped_ns)
        for answer, file in zip(answers, found.files, strict=True)
        if isinstance(answer, list) and found.run_of(file) == folder
    ]


def _with_record(hosts: list[Host], file: Path, around: Beside) -> list[Host]:
    """With the laws of the window that capture recorded; without its counts if of another run."""
    if around.is_of_other_run:
        return [replace(host, counting=None) for host in hosts]
    hosts = _with_version(hosts, around.run)
    window = read_window(around.run, file, around.left_out)
    if window is not None:
        hosts[0].record.checks.extend(laws_of_window(window))
    return hosts


# How is a folder of tables opened in the place of the profile that it came from?


def open_stored(folder: Path, session: str | None, hosts: Sequence[str]) -> Trace:
    """The trace in a folder that `moeprof.tables.store.write_tables` made.

    Figures over all of its hosts are in the tables, so they are not to be had for some of them.

    Raises:
        SelectionError: a session is asked for, a host that is not in it, or not all of its hosts.
        TraceError: the folder is not whole or of another version.
    """
    trace = read_tables(folder)
    if session is not None:
        raise SelectionError(
            f"{folder}: no session is named '{session}'; tables hold a single session"
        )
    known = trace.meta.hosts
    if len(hosts_named(folder, known, hosts)) < len(known):
        raise SelectionError(
            f"{folder}: expected all hosts of these tables or none to be named, found "
            f"{', '.join(hosts)} of {', '.join(known)}; choose hosts of the profile itself"
        )
    return trace


# What is known of a run that left no profile, as a `Trace` in which nothing was recorded.
#
# A run that died, or ran out of memory, before its window was written still has the record of
# `moeprof capture`, or the out-of-memory message alone. A law that failed withholds every figure.

OOM_TEXT = "oom.txt"
_LAW = "profile"
"""The law that fails where nothing was recorded."""


def is_unrecorded(path: Path) -> bool:
    """Whether something is known of a run at `path`, beside its profile.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    return path.is_dir() and (read_meta(path) is not None or (path / OOM_TEXT).is_file())


def unrecorded(path: Path) -> Trace:
    """The trace of a run for which `is_unrecorded` holds, and which has no profile.

    Raises:
        TraceError: there is a ``meta.json`` that cannot be read.
    """
    meta = read_meta(path) or {}
    endings = endings_of(meta)
    rows = [row for row in _list(meta.get("processes")) if isinstance(row, dict)]
    devices = [d for row in rows for d in _list(row.get("devices")) if isinstance(d, dict)]
    platforms = [str(d["platform"]) for d in devices if d.get("platform")]
    empty = {name: schema.table() for name, schema in FRAMES.items()}
    return Trace(
        meta=TraceMeta(
            path=str(path),
            platform=platforms[0] if platforms else "unknown",
            hosts=tuple(dict.fromkeys(ending.host for ending in endings if ending.host)),
            devices=len(devices),
            jax_version=jax_version_of(meta),
            events=0,
            run_folder=str(path),
        ),
        trust=(_law(meta, endings),),
        **empty,
    )


def refuse_unrecorded(trace: Trace) -> None:
    """Nothing, of a trace that `unrecorded` did not make.

    Raises:
        NoProfileError: it did; the message says what is known of the run.
    """
    if any(law.check == _LAW for law in trace.trust):
        raise NoProfileError(as_given(trace, _left_by(Path(trace.meta.run_folder))))


def _left_by(path: Path) -> str:
    """That a run left no profile, and what it left."""
    return (
        f"{path}: expected a profile (*.xplane.pb), found only what a run left that recorded "
        f"none: {told_of(path)}"
    )


def told_of(path: Path) -> str:
    """What is known of the run at `path`, in one line, with the command that leads on."""
    meta = read_meta(path) or {}
    return _detail(path, meta, endings_of(meta))


def _law(meta: Mapping[str, object], endings: tuple[Ending, ...]) -> Law:
    expected = meta.get("expected_processes")
    processes = expected if isinstance(expected, int) else max(len(endings), 1)
    whose = f"any of {processes} processes" if processes > 1 else "the run"
    return Law(
        _LAW,
        "fail",
        f"no profile of {whose} was recorded, so no figure can be known",
        tuple(Need),
        expected=processes,
        found=0,
        unit="profiles",
    )


def _detail(path: Path, meta: Mapping[str, object], endings: tuple[Ending, ...]) -> str:
    has_message = (path / OOM_TEXT).is_file()
    parts = [text for text in told(endings) if not (has_message and "explain-oom" in text)]
    code = meta.get("exit_code")
    if not endings and isinstance(code, int) and code:
        parts.append(f"the command ended with {described_exit(code)}")
    expected = meta.get("expected_processes")
    if isinstance(expected, int) and len(endings) < expected:
        parts.append(f"{len(endings)} of {expected} processes left a record")
    seconds = meta.get("duration_s")
    if isinstance(seconds, int | float):
        command = meta.get("command")
        name = f"`{command}`" if isinstance(command, str) else "the command"
        parts.append(f"{name} ran {described_seconds(seconds)}")
    if has_message:
        of, it = (OOM_TEXT, "a copy of it") if is_copy(path) else (str(path), "it")
        ask = shlex.join(["moeprof", "memory", "explain-oom", of])
        parts.append(f"{OOM_TEXT} has an out-of-memory message: `{ask}` explains {it}")
    return "; ".join(parts) or "it says nothing of how it ended"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
