"""Question: of the sessions and hosts that a path holds, which are read?"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprof.errors import SelectionError, TraceError
from moeprof.ingest.sources.sessions import Session, host_name, joined_note, run_folder

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
