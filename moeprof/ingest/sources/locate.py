"""Question: which profile files does a path stand for, and which run folder are they of?

A path may be one ``.xplane.pb`` or ``.trace.json``, packed with gzip or not, a
``plugins/profile/<session>`` folder, a folder some levels above it (a run folder, a TensorBoard log
folder), or any folder that holds such files. Nothing is written beside the input.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprof.errors import NoProfileError, TraceError
from moeprof.ingest.sources.choose import choose
from moeprof.ingest.sources.sessions import SessionFolder, host_name, run_folder, sessions_of
from moeprof.ingest.unreadable import unreadable

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
JSON_COPIES = (".trace.json", ".trace.json.gz")

_NAMED = 3


@dataclass(frozen=True)
class Profiles:
    """The profile files to read, one per process, and what was passed over to choose them.

    ``run`` is the folder that was given to the profiler; None where the files stand elsewhere.
    """

    root: Path
    files: tuple[Path, ...]
    run: Path | None
    notes: tuple[str, ...] = ()


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
    raise NoProfileError(
        f"{root}: expected a profile (*.xplane.pb) in it or below plugins/profile/, found "
        "none; give the folder that was passed to the profiler"
    )


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
