"""Question: which files, sessions and hosts does a path stand for, and of which run folder?

A path may be one ``.xplane.pb`` or ``.trace.json``, packed with gzip or not, a
``plugins/profile/<session>`` folder, a folder some levels above it (a run folder, a TensorBoard log
folder), or any folder that holds such files. Nothing is written beside the input.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeprof.errors import NoProfileError, SelectionError, TraceError
from moeprof.ingest.sources.sessions import (
    Session,
    SessionFolder,
    host_name,
    joined_note,
    run_folder,
    sessions_of,
)
from moeprof.ingest.xspace.open_space import unreadable

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
JSON_COPIES = (".trace.json", ".trace.json.gz")

_NAMED = 3
_PACKED = 8
"""How many bytes one of a packed profile stands for."""


@dataclass(frozen=True)
class Profiles:
    """The profile files to read, one per process, and what was passed over to choose them.

    ``run`` is the folder that was given to the profiler; None where the files stand elsewhere.
    ``urls`` says of files that are not in their place yet where they are to be had. Where one run
    lies in several folders, ``runs`` has that of each file, and ``silent`` are those of them in
    which no profile was written.
    """

    root: Path
    files: tuple[Path, ...]
    run: Path | None
    notes: tuple[str, ...] = ()
    urls: Mapping[Path, str] = field(default_factory=dict)
    runs: Mapping[Path, Path | None] = field(default_factory=dict)
    silent: tuple[Path, ...] = ()

    def run_of(self, file: Path) -> Path | None:
        """The run folder of one of the files."""
        return self.runs.get(file, self.run)

    @property
    def folders(self) -> list[Path | None]:
        """The run folders of all files, and those without a profile."""
        return list(dict.fromkeys([*map(self.run_of, self.files), *self.silent]))


def locate(path: str | Path, session: str | None = None, hosts: Sequence[str] = ()) -> Profiles:
    """Find the files to read; of several sessions of a run the newest, with a note that says so.

    Args:
        path: any of the forms named above.
        session: name of a session folder: that one is read, with those that belong to it.
        hosts: names of the only hosts to read; none for all. ``node0`` stands for all processes of
            that host, ``node0-p0`` and so on.

    Raises:
        SelectionError: there is no such session or host.
        TraceError: there is nothing to read at `path`, or there are several runs.
    """
    try:
        return _locate(Path(path), session, hosts)
    except OSError as error:
        raise unreadable(error.filename or path, error) from error


def together(found: Sequence[Profiles]) -> Profiles:
    """Files of one run that lie in several places; the first one's folder is the run's.

    Raises:
        TraceError: there is no place, or a file was given twice.
    """
    if not found:
        raise TraceError("no path was given: expected a run folder or a profile")
    files = [file for each in found for file in each.files]
    if twice := [
        str(file) for file, times in Counter(map(Path.resolve, files)).items() if times > 1
    ]:
        raise TraceError(f"{twice[0]}: expected each profile once, found it in two of the paths")
    notes = (note for each in found for note in each.notes)
    runs = {file: each.run for each in found for file in each.files}
    return replace(found[0], files=tuple(files), notes=tuple(notes), runs=runs)


def _locate(root: Path, session: str | None, hosts: Sequence[str]) -> Profiles:
    files, copies = _profiles(root)
    known = set(files)
    kept = [file for file in files if file.suffix != ".gz" or file.with_suffix("") not in known]
    choice = choose(root, sessions_of(_folders(kept)), session, hosts)
    packed = (f"{file} passed over: it is there unpacked too" for file in files if file not in kept)
    alone = [] if hosts else _alone(copies, files, choice.files, is_any=session is None)
    notes = (*choice.notes, *packed, *alone)
    return Profiles(root, choice.files, run_folder(choice.files[0]), notes)


def _alone(
    copies: Sequence[Path], files: Sequence[Path], chosen: Sequence[Path], *, is_any: bool
) -> list[str]:
    """Which JSON traces are of a host without a profile, where they stand beside the chosen ones.

    If any session may be read, those of folders without a profile too.
    """
    known = {(file.parent, host_name(file)) for file in files}
    folders, read = {file.parent for file in files}, {file.parent for file in chosen}
    names = [
        str(copy)
        for copy in copies
        if (copy.parent, host_name(copy)) not in known
        and (copy.parent in read or (is_any and copy.parent not in folders))
    ]
    if not names:
        return []
    named = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return [f"not read, as other hosts have an .xplane.pb and these a JSON trace alone: {named}"]


def _profiles(root: Path) -> tuple[list[Path], list[Path]]:
    """The profiles, and the JSON traces that are passed over for them."""
    if not root.exists():
        raise TraceError(f"{root}: no such file or folder; give a run folder or an .xplane.pb file")
    if root.is_file():
        return [root], []
    if not root.is_dir():
        raise TraceError(
            f"{root}: expected a profile or a folder, found a pipe or a device; save it to a file"
        )
    every = sorted(p for p in root.rglob("*") if p.is_file())
    # a JSON trace is a copy with losses: it is read where nothing else is there
    files, copies = (
        [p for p in every if p.name.endswith(suffixes)] for suffixes in (SUFFIXES, JSON_COPIES)
    )
    if files or copies:
        return (files, copies) if files else (copies, [])
    for _ in os.walk(root, onerror=_fail):  # a folder that may not be read may hold one
        pass
    raise NoProfileError(
        f"{root}: expected a profile (*.xplane.pb) in it or below plugins/profile/, found "
        "none; give the folder that was passed to the profiler"
    )


def _fail(error: OSError) -> None:
    raise error


def _folders(files: Sequence[Path]) -> list[SessionFolder]:
    """The folders that the files stand in; those outside of a run folder belong to their parent."""
    by_folder: dict[Path, list[Path]] = {}
    for file in files:
        by_folder.setdefault(file.parent, []).append(file)
    return [
        SessionFolder(
            path=Path(os.path.abspath(folder)),
            place=run_folder(inside[0]) or Path(os.path.abspath(folder)).parent,
            files=tuple(inside),
            written_s=max(file.stat().st_mtime for file in inside),
        )
        for folder, inside in by_folder.items()
    ]


# Of the sessions and hosts that a path holds, which are read?

_PROCESS = re.compile(r"-p\d+$")  # capture names a profile by host and process
_MOST_LISTED = 12


@dataclass(frozen=True)
class Choice:
    """The profile files to read, and what was passed over or joined to choose them."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def choose(
    root: Path, sessions: list[Session], session: str | None, hosts: Sequence[str]
) -> Choice:
    """The session of that name, else the newest; of it these hosts, else all.

    Args:
        root: the path that was given, which messages name.
        sessions: oldest first; at least one.
        session: name of one of a session's folders, or None.
        hosts: names of hosts. ``node0`` stands for its processes ``node0-p0`` and so on too.

    Raises:
        SelectionError: there is no such session or host.
        TraceError: the sessions are of several runs.
    """
    chosen = _newest(root, sessions) if session is None else _named(root, sessions, session)
    read = hosts_named(root, [host_name(file) for file in chosen.files], hosts)
    files = tuple(file for file in chosen.files if host_name(file) in read)
    notes = (
        _session_note(root, sessions, chosen, is_named=session is not None),
        joined_note(chosen),
        _hosts_note(chosen.files, files),
    )
    return Choice(files, tuple(note for note in notes if note))


def hosts_named(root: Path, known: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """Those of the `known` hosts that `hosts` names; all where it names none.

    Raises:
        SelectionError: it names one that is not known.
    """
    for host in hosts:
        if not any(_is_of_host(name, host) for name in known):
            raise SelectionError(f"{root}: no host is named '{host}'; there are: {_listed(known)}")
    return [name for name in known if not hosts or any(_is_of_host(name, h) for h in hosts)]


def _newest(root: Path, sessions: list[Session]) -> Session:
    """The newest session, if all are of one run.

    Raises:
        TraceError: they are of several runs.
    """
    runs = sorted({_run_of(session) for session in sessions})
    if len(runs) > 1:
        raise TraceError(
            f"{root}: expected one run, found {len(runs)}: "
            f"{_listed([os.path.relpath(run, root) for run in runs])}; give one of them"
        )
    return sessions[-1]


def _run_of(session: Session) -> Path:
    """The run folder; outside of one every session counts as a run of its own."""
    first = session.folders[0]
    return run_folder(first.files[0]) or first.path


def _named(root: Path, sessions: list[Session], name: str) -> Session:
    found = [s for s in sessions if any(folder.path.name == name for folder in s.folders)]
    if not found:
        names = [folder.path.name for session in sessions for folder in session.folders]
        raise SelectionError(f"{root}: no session is named '{name}'; there are: {_listed(names)}")
    return _newest(root, found)


def _is_of_host(name: str, host: str) -> bool:
    return host in (name, _PROCESS.sub("", name))


def _session_note(root: Path, sessions: list[Session], chosen: Session, *, is_named: bool) -> str:
    others = [session.name for session in sessions if session is not chosen]
    if others:
        which = chosen.name if is_named else f"the newest, {chosen.name}"
        return f"{len(sessions)} sessions found; read {which} (not: {_listed(others)})"
    at_root = root.is_file() or chosen.folders[0].path == Path(os.path.abspath(root))
    if at_root or len(chosen.folders) > 1:
        return ""
    return f"session read: {os.path.relpath(chosen.folders[0].path, root)}"


def _hosts_note(files: Sequence[Path], read: Sequence[Path]) -> str:
    others = [host_name(file) for file in files if file not in read]
    names = ", ".join(map(host_name, read))
    return f"hosts read: {names} (not: {_listed(others)})" if others else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join([*names[:_MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])


def unpacked_bytes(file: Path) -> int:
    """How large a profile is as it is read; of a packed one about, of one that is gone 0."""
    try:
        return file.stat().st_size * (_PACKED if file.suffix == ".gz" else 1)
    except OSError:  # who reads it says so
        return 0


def are_by_process(files: Sequence[Path]) -> bool:
    """Whether files are of one process each, of which there are several."""
    return len(files) > 1 and all(file.name.endswith(SUFFIXES) for file in files)
