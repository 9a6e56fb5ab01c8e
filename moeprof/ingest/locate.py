"""Question: which profile files does a path stand for, and which run folder are they of?

A path may be one ``.xplane.pb`` or ``.xplane.pb.gz``, a ``plugins/profile/<session>`` folder, a
folder some levels above it (a run folder, a TensorBoard log folder), or any folder that holds
such files. Nothing is written beside the input.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from moeprof.errors import TraceError

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
_JSON_COPIES = (".trace.json", ".trace.json.gz")
_STAMP = re.compile(r"\d{4}(_\d\d){5}")  # TensorBoard names a session by the second it ended
_MOST_LISTED = 12


@dataclass(frozen=True)
class Session:
    """The profile files of one session, and what was passed over to choose it.

    ``run`` is the folder that was given to the profiler; None where the files stand elsewhere.
    """

    root: Path
    files: tuple[Path, ...]
    run: Path | None
    notes: tuple[str, ...] = ()


def locate(path: str | Path) -> Session:
    """Find the files to read; of several sessions of a run the newest, with a note that says so.

    Raises:
        TraceError: there is nothing to read at `path`, or there are several runs.
    """
    try:
        return _locate(Path(path))
    except OSError as error:
        raise unreadable(error.filename or path, error) from error


def run_folder(profile: Path) -> Path | None:
    """The run folder of a profile that stands in ``RUN/plugins/profile/<session>``, else None."""
    for place in (Path(os.path.abspath(profile)), profile.resolve()):  # before and behind links
        above = place.parents
        if len(above) > 3 and (above[1].name, above[2].name) == ("profile", "plugins"):
            return above[3]
    return None


def read_bytes(file: Path) -> tuple[bytes, str]:
    """Contents of a profile file, unpacked, and what is wrong with them; empty if nothing.

    Raises:
        TraceError: the file cannot be read, is empty, or is plainly no profile.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error
    if not raw:
        raise TraceError(f"{file}: expected a profile, found an empty file; capture it again")
    problem = ""
    if raw[:2] == b"\x1f\x8b":
        raw, problem = _gunzip(raw)
    start = raw[:64].lstrip().lower()
    if start.startswith((b"<", b"{", b"[")):
        kind = "an HTML or XML page" if start.startswith(b"<") else "JSON text"
        raise TraceError(f"{file}: expected an XSpace protobuf, found {kind}; download it again")
    if not raw:
        raise TraceError(f"{file}: expected a profile, found no readable byte in the archive")
    return raw, problem


def unreadable(path: object, error: OSError) -> TraceError:
    """The error to raise where the system refuses to read `path`."""
    reason = error.strerror or str(error)
    return TraceError(f"{path}: expected to read it, found: {reason}; check its permissions")


def _locate(root: Path) -> Session:
    if not root.exists():
        raise TraceError(f"{root}: no such file or folder; give a run folder or an .xplane.pb file")
    if root.is_file():
        return _one_file(root)
    files = sorted(p for p in root.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
    if not files:
        raise TraceError(
            f"{root}: expected a profile (*.xplane.pb) in it or below plugins/profile/, found "
            "none; give the folder that was passed to the profiler"
        )
    sessions = _of_one_run(root, {file.parent: run_folder(file) for file in files})
    ordered = _by_age(sessions)
    newest = ordered[-1]
    return Session(
        root,
        tuple(file for file in files if file.parent == newest),
        run_folder(newest / "profile"),
        _notes(root, ordered),
    )


def _one_file(file: Path) -> Session:
    if file.name.endswith(_JSON_COPIES):
        raise TraceError(
            f"{file}: expected an .xplane.pb file, found the JSON trace, a cut copy of the profile "
            f"that is not read; {_beside(file)}"
        )
    return Session(file, (file,), run_folder(file))


def _beside(file: Path) -> str:
    """Only the profile of the same name is the one that the copy was cut from."""
    stem = file.name.removesuffix(".gz").removesuffix(".trace.json")
    profile = next((p for s in SUFFIXES if (p := file.with_name(stem + s)).is_file()), None)
    return f"give {profile}" if profile else f"no {stem}.xplane.pb is beside it: copy that too"


def _of_one_run(root: Path, sessions: dict[Path, Path | None]) -> list[Path]:
    """The session folders, if they are of one run.

    Raises:
        TraceError: they are of several runs.
    """
    runs = sorted({run or Path(os.path.abspath(folder)) for folder, run in sessions.items()})
    if len(runs) > 1:
        named = [os.path.relpath(run, root) for run in runs[:_MOST_LISTED]]
        if len(runs) > _MOST_LISTED:
            named.append(f"and {len(runs) - _MOST_LISTED} more")
        raise TraceError(
            f"{root}: expected one run, found {len(runs)}: {', '.join(named)}; give one of them"
        )
    return list(sessions)


def _by_age(folders: Iterable[Path]) -> list[Path]:
    """Oldest first: by the date in the name where every name is TensorBoard's, else by file time.

    Copying may give all files one time: then numbers in names decide, as in ``run-w2, run-w10``.
    """
    known = sorted(folders, key=lambda folder: _natural(folder.name))
    if all(_STAMP.match(folder.name) for folder in known):
        return known
    return sorted(known, key=_file_time)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _file_time(folder: Path) -> float:
    return max(p.stat().st_mtime for p in folder.iterdir() if p.name.endswith(SUFFIXES))


def _notes(root: Path, folders: list[Path]) -> tuple[str, ...]:
    *others, newest = folders
    if others:
        names = ", ".join(folder.name for folder in others)
        return (f"{len(folders)} sessions found; read the newest, {newest.name} (not: {names})",)
    return (f"session read: {os.path.relpath(newest, root)}",) if newest != root else ()


def _gunzip(raw: bytes) -> tuple[bytes, str]:
    try:
        return gzip.decompress(raw), ""
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        unpacked = zlib.decompressobj(wbits=31)
        whole = bytearray()
        try:
            for at in range(0, len(raw), 1 << 16):
                whole += unpacked.decompress(raw[at : at + (1 << 16)])
        except zlib.error:
            pass
        return bytes(whole), f"the archive is damaged ({error})"
