"""Question: which runs may an assistant ask about, and which stay open between its calls?

A run lies below the root that the server was started with, also where links lead; what is read
with it, as the record of its folder, does too.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeprof.errors import SelectionError
from moeprof.ingest.sources.sessions import run_folder
from moeprof.recordings import newest_recording
from moeprof.session.comparison import Comparison
from moeprof.session.run import Run, load

if TYPE_CHECKING:
    from moeprof.answers.document import Document

_PROFILES = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
_RECORD = "meta.json"
_READ = (".pb", ".gz", ".json", ".parquet", ".txt")
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
        newest = newest_recording(path)  # which is what is read
        if not path.exists():
            raise SelectionError(f"{given}: no such file or folder below {root}; {_listed(root)}")
        return Place(path, max([*_changes(root, path), *_changes(root, newest)]))
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
            waiting += [each for each in _inside(place) if _may_be_read(each)]


def _may_be_read(path: Path) -> bool:
    """Whether it can be a part of a run: not the programs of an environment that lies beside."""
    return path.suffix in _READ or path.is_dir()


def _inside(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries]


MOST_OPEN = 2
"""Runs that are kept open: a comparison needs two."""


class OpenRun:
    """A run, and what it has answered."""

    def __init__(self, run: Run) -> None:
        """Nothing is answered before it is asked."""
        self.run = run
        self._documents: dict[tuple[str, ...], Document] = {}

    def document(self, *only: str) -> Document:
        """The answers to these questions, by default to all, computed once."""
        if only not in self._documents:
            self._documents[only] = self.run.document(only)
        return self._documents[only]


class OpenRuns:
    """The runs that were asked last. One that has changed on disk is read again."""

    def __init__(self, root: Path) -> None:
        """`root` is free of links; nothing outside of it is opened."""
        self.root = root
        self._open: OrderedDict[Place, OpenRun] = OrderedDict()
        self._compared: tuple[tuple[Place, Place], Comparison] | None = None

    def run(self, given: str) -> OpenRun:
        """The run at a path.

        Raises:
            SelectionError: it is not there, or outside of the root.
            TraceError: it cannot be read.
        """
        return self._run(place_of(self.root, given), ())

    def comparison(self, base: str, new: str) -> Comparison:
        """Two runs, compared.

        Raises:
            SelectionError: one of them is not there, or outside of the root.
            TraceError: one of them cannot be read.
        """
        places = (place_of(self.root, base), place_of(self.root, new))
        first = self._run(places[0], places)
        second = self._run(places[1], places)
        if self._compared is None or self._compared[0] != places:
            self._compared = None  # freed before the next is computed
            self._compared = (places, Comparison(first.run, second.run))
        return self._compared[1]

    def _run(self, place: Place, needed: Sequence[Place]) -> OpenRun:
        if place not in self._open:
            self._make_room(place, needed)
            self._open[place] = OpenRun(load(place.path))
        self._open.move_to_end(place)
        return self._open[place]

    def _make_room(self, place: Place, needed: Sequence[Place]) -> None:
        """Free what was read of this run before it changed, then the runs asked longest ago."""
        old = [each for each in self._open if each.path == place.path]
        others = [each for each in self._open if each not in old and each not in needed]
        more = len(self._open) - len(old) - (MOST_OPEN - 1)
        for each in [*old, *others[: max(more, 0)]]:
            del self._open[each]
            if self._compared is not None and each in self._compared[0]:
                self._compared = None
