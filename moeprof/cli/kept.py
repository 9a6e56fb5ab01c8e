"""Answers of a run that was read before, kept in the user's cache directory.

A run is looked at again and again, and what is shown of it is a thousandth of it: answers and pages
are kept, not its columns (docs/why/answers-are-kept.md). One is found by everything that it was
made from: every file of the run by size, times and the bytes of both its ends, the options, the
variables and the very files of moeprof. What is damaged, or where others may write, is not used;
nothing is ever written beside the input. ``--no-cache`` and ``MOEPROF_CACHE=off`` neither read nor
keep answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

Value = TypeVar("Value")

VARIABLE = "MOEPROF_CACHE"
OFF = ("off", "no", "false", "0")
_ENDING = ".answers"
_ENTRY = re.compile(rf"[0-9a-f]{{64}}{re.escape(_ENDING)}")
"""Names of what is given up: a folder that the user names may hold files of others, too."""
_OWN, _PART = ".moeprof-", ".part"
"""Beginning and end of the name of a file that is not written to its end yet."""
_RANDOM = 8
"""Letters that `tempfile` puts between both."""
_HEAD = b"moeprof.kept/1 "
_END_BYTES = 1 << 16
"""How much of both ends of a file is looked at: what changes a file and neither its times, its
size nor these bytes is no accident."""
_LIBRARIES = ("numpy", "pandas", "pyarrow", "plotly", "jinja2")
"""What answers and pages are made with besides moeprof itself."""
_MOST_FILES = 1024
"""A folder with more files is read anew: looking at all of them takes as long."""
_MOST_BYTES = 256 << 20
_LARGEST_BYTES = 32 << 20
_WRITTEN = (".html",)
"""Endings of what moeprof writes into a run folder and never reads."""
_STRAY_S = 3600
"""After so long a file that was begun and not ended is of no process that still writes."""


def answered(
    runs: Sequence[Path | str],
    options: object,
    make: Callable[[], Value],
    *,
    is_kept: bool,
    is_whole: Callable[[Value], bool] = lambda value: True,
) -> Value:
    """The answer about `runs` that was kept, else the one that `make` gives, which is kept.

    Args:
        runs: the paths that were given.
        options: all else that `make` depends on; its ``repr`` tells two of them apart.
        make: reads the run and answers by a plain value, as JSON has them.
        is_kept: whether an answer may be kept and used again.
        is_whole: whether an answer is of all files as they are: one of a file that could not be
            read is not kept, as the next call may read it.
    """
    key = key_of(runs, options) if is_kept and folder() is not None else None
    if key is None:
        return make()
    found = find(key)
    if found is not None:
        return cast("Value", found)
    value = make()
    if is_whole(value) and key_of(runs, options) == key:  # and nothing was written meanwhile
        keep(key, value)
    return value


def folder() -> Path | None:
    """Where answers are kept, there or not; None where they are not to be kept."""
    asked = os.environ.get(VARIABLE, "")
    if asked:
        is_place = asked.lower() not in OFF and os.path.isabs(asked)
        return Path(asked) if is_place else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "moeprof"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "moeprof" if os.path.isabs(home) else None


def find(key: str) -> object:
    """The answer that was kept under a key; None where there is none, or a damaged one."""
    place = folder()
    if place is None or not is_own(place):
        return None
    file = place / f"{key}{_ENDING}"
    try:
        head, _, packed = file.read_bytes().partition(b"\n")
        text = zlib.decompress(packed)
        if head != _HEAD + hashlib.sha256(text).hexdigest().encode():
            return None
        found = json.loads(text)
        os.utime(file)  # what is used last is given up last
    except (OSError, zlib.error, ValueError):
        return None
    return cast("object", found)


def keep(key: str, value: object) -> None:
    """Keep an answer, and give up those that were not used for longest where they are too many.

    Where they cannot be kept, nothing happens: they are only looked up to save time.
    """
    place = folder()
    if place is None:
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError: no answer that can be shown
        text = json.dumps(value, allow_nan=False).encode()
        entry = _HEAD + hashlib.sha256(text).hexdigest().encode() + b"\n" + zlib.compress(text, 1)
        if len(entry) > _LARGEST_BYTES:
            return
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own(place):
            return
        handle, name = tempfile.mkstemp(_PART, _OWN, place)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry)
            os.replace(name, place / f"{key}{_ENDING}")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        _give_up(place)


def kept() -> tuple[int, int]:
    """How many answers are kept, and their bytes."""
    place = folder()
    sizes = []
    for each in _entries(place) if place is not None else ():
        with contextlib.suppress(OSError):  # another process has given it up
            sizes.append(each.stat().st_size)
    return len(sizes), sum(sizes)


def key_of(runs: Sequence[Path | str], options: object) -> str | None:
    """What tells apart everything that an answer about `runs` is made from.

    None where not all of it can be looked at: a run in a store, one with very many files, files
    that come and go.
    """
    if any(isinstance(run, str) for run in runs):
        return None
    told = hashlib.sha256()
    try:
        for text in (_program(), _variables(), repr(options)):
            told.update(f"{text}\0".encode("utf-8", "surrogateescape"))
        for run in cast("Sequence[Path]", runs):
            told.update(f"{run}\0{os.path.realpath(run)}\0".encode("utf-8", "surrogateescape"))
            for found in _surroundings(run):
                told.update(_line(found))
    except (OSError, _Unseen):
        return None
    return told.hexdigest()


class _Unseen(Exception):
    """Not everything that an answer is made from can be looked at."""


def _program() -> str:
    """This very moeprof and what it computes with: a changed file of it answers anew."""
    import moeprof

    places = [Path(place) for place in moeprof.__path__]  # native libraries may lie apart
    files = sorted(
        f"{path}:{seen.st_size}:{seen.st_mtime_ns}"
        for place in places
        for path, seen in (_files(place, follows_links=True) if place.is_dir() else ())
        if not stat.S_ISDIR(seen.st_mode)
    )
    if not files:
        raise _Unseen  # it runs from an archive
    if named := os.environ.get("MOEPROF_XSPACE_LIBRARY"):
        files.append(f"{os.stat(named).st_size}:{os.stat(named).st_mtime_ns}")
    return " ".join([sys.version, sys.prefix, *map(_version, _LIBRARIES), *files])


def _version(package: str) -> str:
    """Which installation of a package there is, by its first file: it is not imported for that."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return f"{package}:none"
    seen = os.stat(spec.origin)
    return f"{spec.origin}:{seen.st_size}:{seen.st_mtime_ns}"


def _variables() -> str:
    return repr(sorted((n, v) for n, v in os.environ.items() if n.startswith("MOEPROF_")))


def _surroundings(run: Path) -> list[tuple[str, os.stat_result]]:
    """Each file that reading `run` may look at.

    Raises:
        _Unseen: there are very many, or a link may lead to another run.
    """
    found = list(_recorded_again(Path(os.path.abspath(run))))
    for place in dict.fromkeys((run, *_run_folders(run))):
        if not place.is_dir():
            found.append((str(place), place.stat()))
            continue
        for each in _files(place):
            if not each[0].endswith(_WRITTEN):
                found.append(each)
            if len(found) > _MOST_FILES:
                raise _Unseen
    return sorted(found, key=lambda each: each[0])


def _run_folders(run: Path) -> list[Path]:
    """The run folders that a profile, a session or a folder of sessions may stand in."""
    found = []
    for place in (Path(os.path.abspath(run)), Path(os.path.realpath(run))):
        parts = place.parts
        for at in range(1, len(parts)):
            if parts[at : at + 2] in (("plugins",), ("plugins", "profile")):
                found.append(Path(*parts[:at]))
    return [place for place in dict.fromkeys(found) if place.is_dir()]


def _recorded_again(run: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Folders beside it that may be further recordings of it."""
    with os.scandir(run.parent) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.name.startswith(f"{run.name}-"):
                yield entry.path, entry.stat()


def _files(place: Path, *, follows_links: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Every file below a folder, and the folders.

    Raises:
        _Unseen: there is a link, which are not to be followed: what it leads to may be of a run of
            its own.
    """
    seen: set[tuple[int, int]] = set()
    folders = [str(place)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name == "__pycache__":  # of our own files
                    continue
                if entry.is_symlink() and not follows_links:
                    raise _Unseen
                found = entry.stat()
                if entry.is_dir():
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                    folders.append(entry.path)
                yield entry.path, found


def _line(known: tuple[str, os.stat_result]) -> bytes:
    """A file by its place, size, times, and the bytes of both ends."""
    path, seen = known
    is_file = stat.S_ISREG(seen.st_mode)
    facts = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino] if is_file else []
    line = f"{path}\0{facts}\0".encode("utf-8", "surrogateescape")
    if not is_file:
        return line
    told = hashlib.sha256()
    with open(path, "rb") as file:
        told.update(file.read(_END_BYTES))
        file.seek(max(seen.st_size - _END_BYTES, 0))
        told.update(file.read(_END_BYTES))
    return line + told.digest()


def is_own(place: Path) -> bool:
    """Whether answers may be kept in a folder that is there: see `refused`."""
    return not refused(place)


def refused(place: Path) -> str:
    """Why answers cannot be kept in a folder; empty where they can.

    It must be this user's, and nobody else may write into it: an answer could be anybody's there.
    """
    try:
        seen = os.stat(place)
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(seen.st_mode):
        return "no folder"
    if seen.st_uid != os.getuid():
        return "of another user"
    if seen.st_mode & 0o022:
        return "others may write into it"
    return "" if os.access(place, os.W_OK | os.X_OK) else "not to be written into"


def _entries(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return [each for each in entries if _ENTRY.fullmatch(each.name) and each.is_file()]
    except OSError:
        return []


def _give_up(place: Path) -> None:
    """Remove what was used longest ago until the rest has room, and what was begun long ago."""
    found = sorted(((each.stat(), each.path) for each in _entries(place)), key=_used)
    total = sum(seen.st_size for seen, _ in found)
    for seen, path in found[:-1]:
        if total <= _MOST_BYTES:
            break
        os.unlink(path)
        total -= seen.st_size
    newest = found[-1][0].st_mtime if found else 0
    for stray in place.glob(f"{_OWN}{'?' * _RANDOM}{_PART}"):
        if stray.is_file() and stray.stat().st_mtime < newest - _STRAY_S:
            stray.unlink()


def _used(known: tuple[os.stat_result, str]) -> int:
    return known[0].st_mtime_ns
