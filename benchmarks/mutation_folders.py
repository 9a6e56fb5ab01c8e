"""Kinds of change of the files around a profile: names, copies, archives, what lies beside it."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FolderKind:
    """A change of a capture's copy, a run folder or a file, that returns the path to read.

    ``change`` takes the path of the copy, which lies in a folder of its own.
    """

    name: str
    change: Callable[[Path, random.Random], Path]
    loses: bool
    invisible: str = ""


FOLDER_KINDS: list[FolderKind] = []


def _kind(loses: bool) -> Callable[[Callable[[Path, random.Random], Path]], object]:
    def register(function: Callable[[Path, random.Random], Path]) -> object:
        FOLDER_KINDS.append(FolderKind(function.__name__.removeprefix("_"), function, loses))
        return function

    return register


def profile_of(run: Path) -> Path:
    """The profile of a run folder, or the file itself."""
    return run if run.is_file() else next(run.glob("plugins/profile/*/*.xplane.pb*"))


@_kind(loses=False)
def _file_renamed(run: Path, rng: random.Random) -> Path:
    """The name of a file is no part of the record, but for the number of its process."""
    file = profile_of(run)
    number = "-p0" if "-p0" in file.name else ""
    moved = file.rename(file.with_name(f"worker{rng.randrange(99)}{number}.xplane.pb"))
    return moved if run == file else run


@_kind(loses=False)
def _folder_renamed(run: Path, rng: random.Random) -> Path:
    return run.rename(run.with_name(f"kept of {rng.randrange(99)} {run.name}"))


@_kind(loses=False)
def _file_packed(run: Path, rng: random.Random) -> Path:
    file = profile_of(run)
    packed = file.with_name(f"{file.name}.gz")
    packed.write_bytes(gzip.compress(file.read_bytes(), rng.randrange(1, 9)))
    file.unlink()
    return packed if run == file else run


@_kind(loses=False)
def _folder_copied(run: Path, rng: random.Random) -> Path:
    """A copy of the run next to it is another run."""
    other = run.with_name(f"copy-{rng.randrange(99)}-{run.name}")
    (shutil.copy if run.is_file() else shutil.copytree)(run, other)
    return run


@_kind(loses=False)
def _earlier_session_beside(run: Path, rng: random.Random) -> Path:
    """A folder keeps the sessions of earlier captures; the newest one is read."""
    if run.is_dir():
        file = profile_of(run)
        older = file.parent.with_name("2001_01_01_00_00_00")
        older.mkdir()
        (older / file.name).write_bytes(file.read_bytes())
        for path in (older, older / file.name):
            _age(path)
    return run


def _age(path: Path) -> None:
    os.utime(path, (10**9, 10**9))


@_kind(loses=False)
def _foreign_file_beside(run: Path, rng: random.Random) -> Path:
    folder = profile_of(run).parent
    (folder / f"notes-{rng.randrange(99)}.txt").write_text("learning rate 3e-4\n")
    (folder / ".DS_Store").write_bytes(rng.randbytes(64))
    (folder / "memory_viewer.json").write_text(json.dumps({"heap": []}))
    return run


@_kind(loses=True)
def _record_of_another_run(run: Path, rng: random.Random) -> Path:
    """meta.json counts other steps, of another annotation."""
    meta = run / "meta.json"
    if meta.is_file():
        told = json.loads(meta.read_text())
        text = json.dumps(told).replace('"train"', '"evaluate"')
        meta.write_text(text)
    return run


@_kind(loses=True)
def _record_lost(run: Path, rng: random.Random) -> Path:
    if (run / "meta.json").is_file():
        (run / "meta.json").unlink()
    return run


@_kind(loses=True)
def _routing_lost(run: Path, rng: random.Random) -> Path:
    if (run / "routing").is_dir():
        shutil.rmtree(run / "routing")
    return run


@_kind(loses=True)
def _routing_cut(run: Path, rng: random.Random) -> Path:
    for file in (run / "routing").glob("*.parquet") if run.is_dir() else ():
        file.write_bytes(file.read_bytes()[: rng.randrange(20, 900)])
    return run
