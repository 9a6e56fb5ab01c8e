"""Question: which profile files does a path stand for?

A path may be one ``.xplane.pb`` or ``.xplane.pb.gz``, a ``plugins/profile/<session>`` folder, a
folder some levels above it (a run folder, a TensorBoard log folder), or any folder that holds
such files. Nothing is written beside the input.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from moeprof.errors import TraceError

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")


@dataclass(frozen=True)
class Session:
    """The profile files of one session, and what was passed over to choose it."""

    root: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def locate(path: str | Path) -> Session:
    """Find the files to read; of several sessions the newest, with a note that says so.

    Raises:
        TraceError: there is nothing to read at `path`.
    """
    root = Path(path)
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
    folders = sorted({file.parent for file in files}, key=_age)
    newest = folders[-1]
    return Session(root, tuple(f for f in files if f.parent == newest), _notes(folders, newest))


def read_bytes(file: Path) -> tuple[bytes, str]:
    """Contents of a profile file, unpacked, and what is wrong with them; empty if nothing.

    Raises:
        TraceError: the file is empty or is plainly no profile.
    """
    raw = file.read_bytes()
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


def _one_file(file: Path) -> Session:
    if file.name.endswith((".trace.json", ".trace.json.gz")):
        raise TraceError(
            f"{file}: the JSON trace is a cut copy of the profile and is not read; give the "
            f".xplane.pb beside it ({_beside(file)})"
        )
    return Session(file, (file,))


def _beside(file: Path) -> str:
    others = sorted(p.name for p in file.parent.iterdir() if p.name.endswith(SUFFIXES))
    return ", ".join(others) or "none is in its folder"


def _age(folder: Path) -> tuple[str, float]:
    """Session folders are named by date and time; ties and other names go by file time."""
    newest = max(p.stat().st_mtime for p in folder.iterdir() if p.name.endswith(SUFFIXES))
    name = folder.name if folder.name[:4].isdigit() else ""
    return name, newest


def _notes(folders: list[Path], newest: Path) -> tuple[str, ...]:
    if len(folders) == 1:
        return ()
    others = ", ".join(folder.name for folder in folders if folder != newest)
    return (f"{len(folders)} sessions found; read the newest, {newest.name} (not: {others})",)


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
