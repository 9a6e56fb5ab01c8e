"""Question: how is a run read that lies in an object store?

What lies beside its profiles is copied, and a profile when it is read.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from moeprof.errors import MoeprofError, NoProfileError, TraceError, one_line
from moeprof.ingest.sources.locate import JSON_COPIES, SUFFIXES

_SCHEME = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_PROFILES = (*SUFFIXES, *JSON_COPIES)
_RECORDS = tuple(
    PurePosixPath(beside)
    for beside in (
        *("meta.json", "oom.txt", "host/*.json", "memory/*.json"),
        *("routing/*.parquet", "routing/*.partial"),
    )
)
"""What is read of a run folder beside its profiles."""
_TABLES = tuple(map(PurePosixPath, ("trace.json", "*.parquet")))
"""What is read of a folder of tables."""
_HOME = "moeprof-run-"
"""How the folders are called that hold copies of runs for as long as these are read."""
_INSTALL = "pip install 'moeprof[cluster]' brings what reads it"


def is_remote(path: str) -> bool:
    """Whether a path names a place that fsspec reads, as ``s3://bucket/run`` does."""
    return _SCHEME.match(path) is not None


@dataclass(frozen=True)
class Mirror:
    """A run of a store as it stands here: the place of what was given, and of profiles the url.

    ``names`` has the address of the folder that stands here.
    """

    place: Path
    urls: dict[Path, str]
    names: dict[str, str]


@dataclass(frozen=True)
class Here:
    """Where the folders of a run lie here, and where its profiles are to be had if not there.

    ``given`` are their paths and addresses as they were given. Copies are removed with it, or
    earlier by `remove`.
    """

    given: tuple[str, ...]
    places: list[Path]
    urls: dict[Path, str]
    names: dict[str, str]
    home: Path | None = None

    def __post_init__(self) -> None:
        """Have the copies go when nobody holds this, or when Python ends."""
        if self.home is not None:
            weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)

    def remove(self) -> None:
        """Remove the copies now."""
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Errors that are raised meanwhile have addresses for the places of copies.

        Raises:
            MoeprofError: one was raised.
        """
        try:
            yield
        except MoeprofError as error:
            raise type(error)(self.as_given(str(error))) from error

    def as_given(self, value: Any) -> Any:
        """Texts, and what holds some, with the addresses that were given for the places here."""
        if isinstance(value, str):
            for place, url in self.names.items():
                value = value.replace(place, url)
            return value
        if isinstance(value, Mapping):
            return {self.as_given(key): self.as_given(each) for key, each in value.items()}
        return [self.as_given(each) for each in value] if isinstance(value, list) else value


@contextmanager
def run_at(paths: Sequence[str]) -> Iterator[Here]:
    """The folders of a run here: those in stores as copies, which are then removed.

    Raises:
        MoeprofError: what was raised meanwhile, with addresses for the places of copies.
    """
    here = brought(paths)
    try:
        with here.telling():
            yield here
    finally:
        here.remove()


def brought(paths: Sequence[str]) -> Here:
    """The folders of a run here: those in stores as copies, for as long as the answer is held.

    Raises:
        TraceError: one in a store cannot be read.
    """
    remote = sorted(path for path in paths if is_remote(path))
    here = Here(tuple(paths), [], {}, {}, Path(tempfile.mkdtemp(prefix=_HOME)) if remote else None)
    with here.telling():
        for path in paths:
            if here.home is not None and is_remote(path):  # copies sort as the addresses do
                mirror = mirrored(path, here.home / f"{remote.index(path):06}")
                here.urls.update(mirror.urls)
                here.names.update(mirror.names)
            here.places.append(mirror.place if is_remote(path) else Path(path))
    return here


def is_copy(path: Path) -> bool:
    """Whether a place is one of a copy of a run in a store."""
    return any(above.name.startswith(_HOME) for above in path.parents)


def mirrored(url: str, folder: Path) -> Mirror:
    """Copy a remote run into `folder`, its profiles as holes of their size; where each of them is.

    Beside profiles only what is read of a run is copied, not checkpoints or logs; of a session or
    a profile alone the record of its run, too.

    Raises:
        TraceError: the store or the run cannot be read, or what reads it is not installed.
    """
    files, root = _store(url)
    try:
        every = _listed(files, root)
        runs = {run for name in every if name.endswith(_PROFILES) and (run := _run_of(name))}
        above = [run for run in runs if PurePosixPath(root).is_relative_to(run)]
        base = above[0] if above else str(PurePosixPath(root).parent) if root in every else root
        folder = folder / PurePosixPath(base).name
        urls = {}
        for name in every:
            if name.endswith(_PROFILES):
                mine = _place(name, base, folder)
                _hole(mine, every[name])
                urls[mine] = files.unstrip_protocol(name)
        beside = every if base == root else [*every, *_records_of(files, above)]
        read = dict.fromkeys(runs or [base], _RECORDS)
        if str(PurePosixPath(base, "trace.json")) in every:
            read[base] = (*_RECORDS, *_TABLES)
        copied = [name for name in beside if any(_is_any(name, *each) for each in read.items())]
        for name in copied:
            mine = _place(name, base, folder)
            mine.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(name, str(mine))
    except TraceError:
        raise
    except Exception as error:  # each store has errors of its own
        raise _unreadable(url, error) from error
    if not urls and not copied:
        raise NoProfileError(
            f"{url}: expected a profile (*.xplane.pb) in it or below plugins/profile/, found none; "
            "give the folder that was passed to the profiler"
        )
    place = _place(root, base, folder)
    address = url.rstrip("/").split("/")
    given = "/".join(address[: len(address) - len(place.relative_to(folder).parts)])
    return Mirror(place, urls, {str(folder): given})


def _records_of(files: Any, runs: Sequence[str]) -> list[str]:
    """What may be read beside the profiles of runs; all else of them is not looked at."""
    parts = dict.fromkeys(each.parts[0] for each in _RECORDS)
    return [name for run in runs for part in parts for name in _listed(files, f"{run}/{part}")]


def _listed(files: Any, place: str) -> dict[str, Mapping[str, Any]]:
    """All files below a place of a store by name; markers of folders are none."""
    every = files.find(place, detail=True).items()
    return {name: facts for name, facts in every if not name.endswith("/")}


def _run_of(name: str) -> str:
    """The run folder of a profile in a store, empty where it stands outside of one."""
    above = PurePosixPath(name).parents
    is_in_run = len(above) > 3 and (above[1].name, above[2].name) == ("profile", "plugins")
    return str(above[3]) if is_in_run else ""


def _is_any(name: str, run: str, named: Sequence[PurePosixPath]) -> bool:
    """Whether a file of a run is one of those that are named."""
    if not PurePosixPath(name).is_relative_to(run):
        return False
    inside = PurePosixPath(name).relative_to(run)
    return any(len(inside.parts) == len(each.parts) and inside.match(str(each)) for each in named)


def _place(name: str, base: str, folder: Path) -> Path:
    """Where a file of a store is copied to.

    Raises:
        TraceError: that is not below the folder.
    """
    inside = PurePosixPath(os.path.relpath(name, base))
    if ".." in (*PurePosixPath(name).parts, *inside.parts):
        raise TraceError(
            f"{name}: expected a file below {base}, found '..' in its name; rename or remove it"
        )
    return folder / inside


def _hole(mine: Path, facts: Mapping[str, Any]) -> None:
    """A file of the size and time of one in a store, without its content."""
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.touch()
    os.truncate(mine, int(facts.get("size") or 0))
    if written_s := _written_s(facts):
        os.utime(mine, (written_s, written_s))


@contextmanager
def fetched(url: str, place: Path) -> Iterator[Path]:
    """A remote file under the last two names of its `place`, in a folder that is then removed.

    Where the copy of its run is on this machine that folder is in its home, and goes with it even
    if this process is killed.

    Raises:
        TraceError: it cannot be read.
    """
    homes = [above for above in place.parents if above.name.startswith(_HOME) and above.is_dir()]
    with tempfile.TemporaryDirectory(prefix="moeprof-", dir=next(iter(homes), None)) as folder:
        mine = Path(folder, *place.parts[-2:])
        mine.parent.mkdir(parents=True, exist_ok=True)
        fetch(url, mine)
        yield mine


def fetch(url: str, mine: Path) -> None:
    """Copy a remote file to a place.

    Raises:
        TraceError: it cannot be read.
    """
    files, name = _store(url)
    try:
        files.get_file(name, str(mine))
    except Exception as error:
        raise _unreadable(url, error) from error


def _store(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        scheme, rest = url.split("://", 1)
        found: tuple[Any, str] = url_to_fs(f"{scheme.lower()}://{rest}")
        return found
    except (ImportError, ValueError) as error:
        raise TraceError(
            f"{url}: expected a store that can be read, found {error}; {_INSTALL}"
        ) from error
    except Exception as error:  # each store has errors of its own
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> TraceError:
    told = one_line(error) or type(error).__name__
    return TraceError(
        f"{url}: expected a run that can be read, found: {told}; check path and rights"
    )


def _written_s(facts: Mapping[str, Any]) -> float:
    """When a file was written, 0 where the store does not say."""
    names = ("LastModified", "mtime", "updated", "last_modified")  # of s3fs, files, gcsfs, adlfs
    when = next(filter(None, map(facts.get, names)), 0)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return float(when.timestamp() if isinstance(when, datetime) else when)
