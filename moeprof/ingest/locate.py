"""Question: which profile files does a path stand for, and which run folder are they of?

A path may be one ``.xplane.pb`` or ``.trace.json``, packed with gzip or not, a
``plugins/profile/<session>`` folder, a folder some levels above it (a run folder, a TensorBoard log
folder), or any folder that holds such files. Nothing is written beside the input.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprof.errors import TraceError
from moeprof.ingest.choose import choose
from moeprof.ingest.sessions import SessionFolder, run_folder, sessions_of

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
JSON_COPIES = (".trace.json", ".trace.json.gz")


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
    if is_text(raw[:64]):
        kind = "an HTML or XML page" if raw.lstrip().startswith(b"<") else "JSON text"
        raise TraceError(f"{file}: expected an XSpace protobuf, found {kind}; download it again")
    if not raw:
        raise TraceError(f"{file}: expected a profile, found no readable byte in the archive")
    return raw, problem


def is_text(start: bytes) -> bool:
    """Whether a file that starts so is a page or JSON, which no XSpace is.

    The first byte of an XSpace is a newline, and the next may be any letter: what tells them
    apart is that a plane begins with control characters.
    """
    controls = set(start) & (set(range(32)) - set(b"\t\n\r\f"))
    return not controls and start.lstrip().startswith((b"<", b"{", b"["))


def unreadable(path: object, error: OSError) -> TraceError:
    """The error to raise where the system refuses to read `path`."""
    reason = error.strerror or str(error)
    return TraceError(f"{path}: expected to read it, found: {reason}; check its permissions")


def _locate(root: Path, session: str | None, hosts: Sequence[str]) -> Profiles:
    files = _profiles(root)
    known = set(files)
    kept = [file for file in files if file.suffix != ".gz" or file.with_suffix("") not in known]
    choice = choose(root, sessions_of(_folders(kept)), session, hosts)
    copies = (f"{file} passed over: it is there unpacked too" for file in files if file not in kept)
    return Profiles(root, choice.files, run_folder(choice.files[0]), (*choice.notes, *copies))


def _profiles(root: Path) -> list[Path]:
    if not root.exists():
        raise TraceError(f"{root}: no such file or folder; give a run folder or an .xplane.pb file")
    if root.is_file():
        return [root]
    every = sorted(p for p in root.rglob("*") if p.is_file())
    # a JSON trace is a copy with losses: it is read where nothing else is there
    for suffixes in (SUFFIXES, JSON_COPIES):
        if files := [p for p in every if p.name.endswith(suffixes)]:
            return files
    raise TraceError(
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
