"""Question: how is a run read that lies in an object store?

What lies beside its profiles is copied, and a profile when it is read.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from moeprof.errors import NoProfileError, TraceError
from moeprof.ingest.sources.locate import JSON_COPIES, SUFFIXES

_SCHEME = re.compile(r"^[a-z][a-z0-9+]+://")
_INSTALL = "pip install 'moeprof[cluster]' brings what reads it"


def is_remote(path: str) -> bool:
    """Whether a path names a place that fsspec reads, as ``s3://bucket/run`` does."""
    return _SCHEME.match(path) is not None


def store_refused(url: str) -> str:
    """What is said of the address of a store where a path is wanted."""
    return (
        f"{url}: expected a path on this machine, found the address of a store, which "
        "`moeprof analyze` alone reads; copy the run here first"
    )


def mirrored(url: str, folder: Path) -> dict[Path, str]:
    """Copy a remote run into `folder`, its profiles as holes of their size; where each of them is.

    Raises:
        TraceError: the store or the run cannot be read, or what reads it is not installed.
    """
    files, root = _store(url)
    try:
        every = files.find(root, detail=True)
        is_file = root in every
        profiles = {}
        for name, facts in every.items():
            mine = folder / (Path(name).name if is_file else os.path.relpath(name, root))
            mine.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith((*SUFFIXES, *JSON_COPIES)):
                mine.touch()
                os.truncate(mine, int(facts.get("size") or 0))
                profiles[mine] = files.unstrip_protocol(name)
                if written_s := _written_s(facts):
                    os.utime(mine, (written_s, written_s))
            else:
                files.get_file(name, str(mine))
    except Exception as error:  # each store has errors of its own
        raise _unreadable(url, error) from error
    if not profiles:
        raise NoProfileError(
            f"{url}: expected a profile (*.xplane.pb) in it or below plugins/profile/, found none; "
            "give the folder that was passed to the profiler"
        )
    return profiles


@contextmanager
def fetched(url: str, place: Path) -> Iterator[Path]:
    """A remote file under the last two names of its `place`, in a folder that is then removed.

    Raises:
        TraceError: it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="moeprof-") as folder:
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

        found: tuple[Any, str] = url_to_fs(url)
        return found
    except (ImportError, ValueError) as error:
        raise TraceError(
            f"{url}: expected a store that can be read, found {error}; {_INSTALL}"
        ) from error


def _unreadable(url: str, error: Exception) -> TraceError:
    told = " ".join(str(error).split()) or type(error).__name__
    return TraceError(
        f"{url}: expected a run that can be read, found: {told}; check path and rights"
    )


def _written_s(facts: Mapping[str, Any]) -> float:
    """When a file was written, 0 where the store does not say."""
    when = facts.get("LastModified") or facts.get("mtime") or facts.get("updated") or 0
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return float(when.timestamp() if isinstance(when, datetime) else when)
