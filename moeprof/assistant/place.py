"""Question: which files may an assistant ask about, and have they changed since they were read?

A run lies below the root that the server was started with, also where links lead; what is read
with it, as the record of its folder, does too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moeprof.errors import SelectionError
from moeprof.ingest.sources.sessions import run_folder

_PROFILES = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
_RECORD = "meta.json"
_MOST_LISTED = 20
_MOST_FOLDERS = 5_000
"""Folders that are looked at for runs to list."""


@dataclass(frozen=True)
class Place:
    """A run's path behind all links, and when what lies there was last changed."""

    path: Path
    changed_ns: int


def place_of(root: Path, given: str) -> Place:
    """The run that `given` names: absolute, or from `root`, which is free of links.

    Raises:
        SelectionError: it is not there, or it or what belongs to it lies outside of the root.
    """
    try:
        path = Path(os.path.realpath(root / given))
        _check_inside(root, path, given)
        if not path.exists():
            raise SelectionError(f"{given}: no such file or folder below {root}; {_listed(root)}")
        return Place(path, max(_changes(root, path)))
    except ValueError:  # a zero byte
        raise SelectionError(f"{given!r}: expected a path, found a zero byte in it") from None
    except OSError as error:
        raise SelectionError(f"{given}: cannot be read ({error.strerror})") from None


def runs_below(root: Path) -> list[str]:
    """Runs below the root, as they can be asked for; the first few."""
    found: dict[str, None] = {}
    for number, (folder, folders, files) in enumerate(os.walk(root)):
        folders.sort()
        if number == _MOST_FOLDERS or len(found) > _MOST_LISTED:
            break
        here = Path(folder)
        profiles = sorted(name for name in files if name.endswith(_PROFILES))
        if _RECORD in files:
            found[os.path.relpath(here, root)] = None
            folders.clear()
        elif profiles:
            above = run_folder(here / profiles[0])
            names = [above] if above else [here / name for name in profiles]
            found |= {os.path.relpath(name, root): None for name in names}
    return list(found)


def _listed(root: Path) -> str:
    runs = runs_below(root)
    if not runs:
        return "no run was found there"
    more = ", …" if len(runs) > _MOST_LISTED else ""
    return f"there are: {', '.join(runs[:_MOST_LISTED])}{more}"


def _check_inside(root: Path, path: Path, given: str) -> None:
    if not path.is_relative_to(root):
        raise SelectionError(
            f"{given}: expected a path below {root}, found that it leads to {path}. "
            "moeprof mcp --root DIR serves another folder"
        )


def _changes(root: Path, path: Path) -> Iterator[int]:
    """When each file and folder of a run was changed; none may lie outside of the root."""
    waiting, seen = [path], set()
    while waiting:
        named = waiting.pop()
        place = Path(os.path.realpath(named))
        if place in seen:
            continue
        seen.add(place)
        _check_inside(root, place, str(named))
        if not place.exists():  # a link to what is gone
            continue
        yield place.stat().st_mtime_ns
        is_folder = place.is_dir()
        if above := run_folder(place / _RECORD if is_folder else place):
            waiting.append(above)  # its record is read too
        if is_folder:
            waiting += _inside(place)


def _inside(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries]
