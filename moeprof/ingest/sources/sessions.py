"""Question: which profile files belong together, as recorded at the same time by several hosts?

Hosts that start their profiler a second apart each make a session folder of their own. Folders of
different hosts are one session where their recorded windows overlap; without recorded windows,
where their names or, last, their file times lie close together.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from io import SEEK_CUR
from itertools import combinations
from pathlib import Path
from typing import IO, cast

from moeprof.ingest.xspace.python_space import open_python_space
from moeprof.ingest.xspace.wire import BYTES, CutError, WireError, fields, text, varint
from moeprof.units import format_percent

LEAST_OVERLAP = 0.5
"""Share of the shorter window that must lie in the other one."""
NEAR_S = 5.0
"""Hosts of one job start within a second or two; names of sessions count whole seconds."""

_ENDING = re.compile(r"(\.xplane\.pb|\.trace\.json|\.json)?(\.gz)?\Z")
_STAMP = re.compile(r"\d{4}(_\d\d){5}")  # TensorBoard names a session by the second it ended


@dataclass(frozen=True)
class SessionFolder:
    """One folder of profiles, a file per process.

    ``place`` is the run that it belongs to: only folders of one place may be joined. ``window``
    spans the windows of its files; None where one states none or nobody needs to know.
    """

    path: Path
    place: Path
    files: tuple[Path, ...]
    written_s: float
    window: Window | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the files without their endings: what the hosts are called."""
        return tuple(map(host_name, self.files))


@dataclass(frozen=True)
class Session:
    """Folders that were recorded together, in order of time."""

    folders: tuple[SessionFolder, ...]

    @property
    def name(self) -> str:
        """Names of its folders."""
        return " + ".join(folder.path.name for folder in self.folders)

    @property
    def files(self) -> tuple[Path, ...]:
        """All of its profiles, by host."""
        files = [file for folder in self.folders for file in folder.files]
        return tuple(sorted(files, key=host_name))


def host_name(file: Path) -> str:
    """What the host, or the process on it, is called whose profile this is."""
    stem = _ENDING.sub("", file.name)
    return os.fsencode(stem).decode("utf-8", "replace")  # file names may be any bytes


def run_folder(profile: Path) -> Path | None:
    """The run folder of a profile that stands in ``RUN/plugins/profile/<session>``, else None."""
    for place in (Path(os.path.abspath(profile)), profile.resolve()):  # before and behind links
        above = place.parents
        if len(above) > 3 and (above[1].name, above[2].name) == ("profile", "plugins"):
            return above[3]
    return None


def sessions_of(folders: Sequence[SessionFolder]) -> list[Session]:
    """Join the folders that belong together; oldest first.

    Raises:
        OSError: a file may not be read.
    """
    if any(_may_join(a, b) for a, b in combinations(folders, 2)):
        folders = [_with_window(folder) for folder in folders]
    found: list[Session] = []
    for folder in _by_age(folders):
        home = next((s for s in reversed(found) if _belongs(folder, s)), None)
        if home is not None:
            found.remove(home)
        found.append(Session((*(home.folders if home else ()), folder)))
    return found


def joined_note(session: Session) -> str:
    """Which folders were joined and why; empty where there is one alone."""
    folders = session.folders
    if len(folders) == 1:
        return ""
    if all(folder.window for folder in folders):
        share = min(_overlap(a, b) for a, b in combinations(folders, 2))
        reason = f"their recorded windows overlap by {format_percent(share)}"
    else:
        what = "names" if all(_stamp_s(folder) is not None for folder in folders) else "file times"
        reason = f"their {what} lie within {NEAR_S:.0f} s; a recorded window is lacking"
    named = ", ".join(f"{folder.path.name} ({', '.join(folder.hosts)})" for folder in folders)
    count = sum(len(folder.hosts) for folder in folders)
    return f"{len(folders)} session folders read as one run of {count} hosts, {reason}: {named}"


def _with_window(folder: SessionFolder) -> SessionFolder:
    windows = [recorded_window(file) for file in folder.files]
    known = [window for window in windows if window is not None]
    if len(known) < len(windows):
        return folder
    window = Window(min(w.start_ns for w in known), max(w.stop_ns for w in known))
    return replace(folder, window=window)


def _belongs(folder: SessionFolder, session: Session) -> bool:
    return all(_may_join(folder, m) and _are_close(folder, m) for m in session.folders)


def _may_join(one: SessionFolder, other: SessionFolder) -> bool:
    """A host has one session at a time, and runs are kept apart."""
    return one.place == other.place and set(one.hosts).isdisjoint(other.hosts)


def _are_close(one: SessionFolder, other: SessionFolder) -> bool:
    if one.window is not None and other.window is not None:
        return _overlap(one, other) >= LEAST_OVERLAP
    first, second = _stamp_s(one), _stamp_s(other)
    if first is not None and second is not None:
        return abs(first - second) <= NEAR_S
    return abs(one.written_s - other.written_s) <= NEAR_S


def _overlap(one: SessionFolder, other: SessionFolder) -> float:
    """Share of the shorter window that lies in the other one, in [0, 1]."""
    assert one.window is not None
    assert other.window is not None
    a, b = one.window, other.window
    common_ns = min(a.stop_ns, b.stop_ns) - max(a.start_ns, b.start_ns)
    shorter_ns = min(a.stop_ns - a.start_ns, b.stop_ns - b.start_ns)
    if shorter_ns == 0:
        return float(common_ns >= 0)
    return max(0, common_ns) / shorter_ns


def _by_age(folders: Sequence[SessionFolder]) -> list[SessionFolder]:
    """Oldest first: by recorded window, else by the date in the names, else by file time.

    Each counts only where all have it. Copying may give all files one time: then numbers in names
    decide, as in ``run-w2, run-w10``.
    """
    known = sorted(folders, key=lambda folder: _natural(folder.path.name))
    if all(folder.window for folder in known):
        return sorted(known, key=lambda folder: folder.window.start_ns if folder.window else 0)
    if all(_STAMP.match(folder.path.name) for folder in known):
        return known
    return sorted(known, key=lambda folder: folder.written_s)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _stamp_s(folder: SessionFolder) -> float | None:
    """The second that the folder is named by, on no clock in particular; None for other names."""
    stamp = _STAMP.match(folder.path.name)
    if stamp is None:
        return None
    try:
        return datetime.strptime(f"{stamp.group()}Z", "%Y_%m_%d_%H_%M_%S%z").timestamp()
    except ValueError:
        return None


# When did a profile record? Reads no event of it, whatever its size.
#
# The profiler notes the start and the stop of its session in a plane of its own, near the end of
# the file; the planes before it are stepped over by their length.

ENVIRONMENT_PLANE = "Task Environment"
STARTED, STOPPED = "profile_start_time", "profile_stop_time"
_HEAD_BYTES = 128  # a plane begins with its id and its name
_MOST_BYTES = 1 << 20  # of the plane looked for; real ones hold a few hundred bytes
_MOST_STEPPED = 1 << 62  # of a plane stepped over: files are shorter, and seeking stops there
_PLANE = bytes([1 << 3 | BYTES])  # tag of XSpace.planes


@dataclass(frozen=True)
class Window:
    """From start to stop of a recording, in ns since 1970 on the clock of its host."""

    start_ns: int
    stop_ns: int


def recorded_window(file: Path) -> Window | None:
    """The window that an ``.xplane.pb`` or ``.xplane.pb.gz`` states; None where it states none.

    Raises:
        OSError: the file may not be read.
    """
    with file.open("rb") as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
        try:
            return _window(_environment(stream))
        except (WireError, EOFError, zlib.error, gzip.BadGzipFile):
            return None


def _environment(stream: IO[bytes]) -> bytes:
    """An XSpace of that plane alone; empty where the planes end without it.

    Raises:
        WireError: the planes end in the middle of one.
    """
    while stream.read(1) == _PLANE:
        coded_size = _coded_size(stream)
        size, _ = varint(coded_size, 0, len(coded_size))
        if size >= _MOST_STEPPED:
            raise WireError(0, f"a plane claims {size:,} bytes")
        head = stream.read(min(size, _HEAD_BYTES))
        if _name(head) == ENVIRONMENT_PLANE:
            return _PLANE + coded_size + head + stream.read(min(size, _MOST_BYTES) - len(head))
        stream.seek(size - len(head), SEEK_CUR)
    return b""


def _coded_size(stream: IO[bytes]) -> bytes:
    """The bytes of the number that comes next, at most ten."""
    coded = stream.read(1)
    while coded[-1:] >= b"\x80" and len(coded) < 10:
        coded += stream.read(1) or b"\0"
    return coded


def _name(head: bytes) -> str:
    try:
        for number, kind, start, end in fields(head, 0, len(head)):
            if number == 2 and kind == BYTES:
                return text(head, start, end)
    except CutError:
        pass  # the first line of a plane goes on past its head
    return ""


def _window(space: bytes) -> Window | None:
    for plane in open_python_space(space).head.planes:
        start, stop = plane.stats.get(STARTED), plane.stats.get(STOPPED)
        if isinstance(start, int) and isinstance(stop, int) and 0 < start <= stop:
            return Window(start, stop)
    return None
