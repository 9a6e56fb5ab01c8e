"""Kinds of change of the files around a profile: names, copies, archives, what lies beside it."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet

from moeprof.tables.routing import RECORDING_KEY


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


def _kind(
    loses: bool, invisible: str = ""
) -> Callable[[Callable[[Path, random.Random], Path]], object]:
    def register(function: Callable[[Path, random.Random], Path]) -> object:
        name = function.__name__.removeprefix("_")
        FOLDER_KINDS.append(FolderKind(name, function, loses, invisible))
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
def _record_of_an_earlier_run(run: Path, rng: random.Random) -> Path:
    """The folder keeps the record of the same command of another day."""
    meta = run / "meta.json"
    if meta.is_file():
        told = json.loads(meta.read_text())
        days = rng.choice((-1, 1)) * rng.randrange(1, 30)
        for row in (told, *told["processes"]):
            for key in ("started", "ended"):
                date = datetime.fromisoformat(row[key]) + timedelta(days=days)
                row[key] = date.isoformat()
            for window in row.get("windows", ()):
                for key in ("started_epoch_ns", "ended_epoch_ns"):
                    window[key] += days * 86_400 * 10**9
        told["window"] = "steps 900 to 902, counted by annotation train"
        meta.write_text(json.dumps(told))
    return run


@_kind(loses=True)
def _record_of_the_run_before(run: Path, rng: random.Random) -> Path:
    """A restarted job: the record is of the attempt that ended minutes before this one began."""
    meta = run / "meta.json"
    if meta.is_file():
        told = json.loads(meta.read_text())
        for row in (told, *told["processes"]):
            length = datetime.fromisoformat(row["ended"]) - datetime.fromisoformat(row["started"])
            back = length + timedelta(seconds=rng.randrange(60, 600))
            for key in ("started", "ended"):
                row[key] = (datetime.fromisoformat(row[key]) - back).isoformat()
            row.pop("windows", None)
        meta.write_text(json.dumps(told))
    return run


def _with_ids(run: Path, record: str, tables: str) -> None:
    """As captures have them: an id in the record and in what its processes wrote."""
    meta = run / "meta.json"
    told = json.loads(meta.read_text())
    for row in told["processes"]:
        row["recording"] = record
    meta.write_text(json.dumps(told))
    for file in [*run.glob("host/*.json"), *run.glob("memory/*.json")]:
        file.write_text(json.dumps(json.loads(file.read_text()) | {"recording": record}))
    for file in run.glob("routing/*.parquet"):
        table = parquet.read_table(file)
        parquet.write_table(table.replace_schema_metadata({RECORDING_KEY: tables.encode()}), file)


@_kind(loses=False)
def _ids_of_the_recording(run: Path, rng: random.Random) -> Path:
    """What newer versions write into each file."""
    if run.is_dir():
        name = f"{rng.getrandbits(128):032x}"
        _with_ids(run, name, name)
    return run


@_kind(loses=True)
def _routing_of_another_run(run: Path, rng: random.Random) -> Path:
    """Routing of as many experts and steps with other counts, whose id is another one."""
    if run.is_dir():
        _with_ids(run, f"{rng.getrandbits(128):032x}", f"{rng.getrandbits(128):032x}")
        _turned(run, rng)
    return run


@_kind(loses=True, invisible="such files have no ids, and its counts are as consistent")
def _routing_of_another_run_without_ids(run: Path, rng: random.Random) -> Path:
    if run.is_dir():
        _turned(run, rng)
    return run


@_kind(loses=True)
def _routing_of_other_steps(run: Path, rng: random.Random) -> Path:
    if run.is_dir():
        _turned(run, rng, later=rng.randrange(1000, 9000))
    return run


def _turned(run: Path, rng: random.Random, later: int = 0) -> None:
    """Other counts with the same sums, of the same steps or of `later` ones."""
    for file in run.glob("routing/*.parquet"):
        table = parquet.read_table(file)
        rows = table.to_pydict()
        if "expert" in rows:  # the odd experts get nothing, the even ones twice the mean
            each = sum(rows["tokens"]) // len(rows["tokens"])
            rows["tokens"] = [0 if expert % 2 else 2 * each for expert in rows["expert"]]
        else:
            rows["rows"] = [rng.randrange(1, max(count, 2)) for count in rows["rows"]]
        rows["step"] = [step + later for step in rows["step"]]
        made = pyarrow.table(rows).replace_schema_metadata(table.schema.metadata)
        parquet.write_table(made, file)


@_kind(loses=True)
def _routing_of_zeros(run: Path, rng: random.Random) -> Path:
    """Some steps, or all of them, were written before anything was counted."""
    for file in run.glob("routing/*.parquet") if run.is_dir() else ():
        table = parquet.read_table(file)
        rows = table.to_pydict()
        value = "rows" if "rows" in rows else "tokens"
        known = sorted(set(rows["step"]))
        zeros = rng.choice((known, known[:4], known[-3:]))
        counts = zip(rows["step"], rows[value], strict=True)
        rows[value] = [0 if step in zeros else count for step, count in counts]
        parquet.write_table(pyarrow.table(rows), file)
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
