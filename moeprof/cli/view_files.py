"""Question: where are the report and the trace of a run that is viewed, and are they still right?

In a folder that `moeprof capture` made they are kept, with a record of what they were made from:
while that is unchanged the next view takes them as they are. Beside any other input nothing is
written: they lie in a folder that is gone afterwards.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import moeprof
from moeprof import __version__
from moeprof.cli.findings import is_partial, read_both
from moeprof.cli.progress import working
from moeprof.errors import ViewError
from moeprof.tables.name_rule import NameRules

SCHEMA = "moeprof.view/1"
_REPORT, _TRACE, _RECORD = "report.html", "run.pftrace", "view.json"
_MADE = (".html", ".pftrace", _RECORD)  # names of what commands write into a run folder end so


@dataclass(frozen=True)
class Viewed:
    """The files to show. `trace` is None where the package that writes it is not installed.

    So it is where nothing was recorded.
    """

    report: Path
    trace: Path | None
    is_partial: bool


@dataclass(frozen=True)
class Wanted:
    """What is to be shown: a run, and what of it."""

    run: Path
    session: str | None = None
    hosts: Sequence[str] = ()
    hardware: str = ""
    names: NameRules | None = None


@contextmanager
def files_of(wanted: Wanted) -> Iterator[Viewed]:
    """The files, made where they are not there or no longer right.

    Raises:
        MoeprofError: the run cannot be read, or the files cannot be written.
    """
    folder = _kept_in(wanted.run)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="moeprof-view-") as made:
            yield _make(wanted, Path(made))
        return
    source = _source(wanted)
    yield _known(folder, source) or _kept(wanted, folder, source)


def _kept_in(run: Path) -> Path | None:
    """The run folder where the report's default path lies in it and it can be written."""
    from moeprof.reports.run.record import is_run_folder
    from moeprof.tables.store import holds_tables

    is_ours = is_run_folder(run) and not holds_tables(run)
    leads_out = any((run / name).is_symlink() for name in (_REPORT, _TRACE, _RECORD))
    return run if is_ours and not leads_out and os.access(run, os.W_OK) else None


def _kept(wanted: Wanted, folder: Path, source: str) -> Viewed:
    """Make the files beside their places first: each appears whole or not at all."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".moeprof-view-") as made:
            viewed = _make(wanted, Path(made))
            for file in filter(None, (viewed.report, viewed.trace)):
                os.replace(file, folder / file.name)
        trace = viewed.trace and folder / _TRACE
        viewed = Viewed(folder / _REPORT, trace, viewed.is_partial)
        _remember(folder, source, viewed)
    except OSError as error:
        raise ViewError(f"{folder}: cannot be written ({error.strerror})") from error
    return viewed


def _make(wanted: Wanted, folder: Path) -> Viewed:
    from moeprof.answers.document import is_unrecorded
    from moeprof.reports.run.page import write_page

    trace, document = read_both(
        wanted.run, (), wanted.session, wanted.hosts, wanted.hardware, wanted.names, is_drawn=True
    )
    with working("writing the page"):
        write_page([document], folder / _REPORT)
    is_traced = can_trace() and not is_unrecorded(document)
    if is_traced:
        from moeprof.reports.perfetto import write_perfetto

        with working("writing the Perfetto trace") as work:
            write_perfetto(trace, folder / _TRACE, work.counting("writing the Perfetto trace"))
    return Viewed(folder / _REPORT, folder / _TRACE if is_traced else None, is_partial(document))


def can_trace() -> bool:
    """Whether the package that writes a timeline is installed."""
    return importlib.util.find_spec("perfetto") is not None


def _source(wanted: Wanted) -> str:
    """A name for what the files are made from: this program, the options, and all of the run."""
    program = [__version__, _newest(Path(moeprof.__file__).parent), can_trace()]
    said = {**asdict(wanted), "run": _inputs(wanted.run), "program": program}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _newest(folder: Path) -> int:
    """When the youngest file of a folder was written, in ns: a checkout changes, its version not.

    Links are followed, as two packages of moeprof's are links in a checkout.
    """
    found = os.walk(folder, followlinks=True)
    files = (Path(place) / name for place, _, names in found for name in names)
    return max(file.stat().st_mtime_ns for file in files if file.suffix != ".pyc")


def _inputs(run: Path) -> list[tuple[str, int, int]]:
    files = (p for p in sorted(run.rglob("*")) if p.is_file() and not p.name.endswith(_MADE))
    return [_state(file, run) for file in files]


def _state(file: Path, folder: Path) -> tuple[str, int, int]:
    found = file.stat()
    return str(file.relative_to(folder)), found.st_size, found.st_mtime_ns


def _outputs(folder: Path, viewed: Viewed) -> list[list[object]]:
    files = [file for file in (viewed.report, viewed.trace) if file is not None]
    return [list(_state(file, folder)) for file in files]


def _known(folder: Path, source: str) -> Viewed | None:
    """What an earlier view left; None where it is of something else or was changed since."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        trace = folder / _TRACE if len(record["files"]) > 1 else None
        viewed = Viewed(folder / _REPORT, trace, bool(record["is_partial"]))
        is_it = (record["schema"], record["source"]) == (SCHEMA, source)
        is_it = is_it and record["files"] == _outputs(folder, viewed)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return viewed if is_it else None


def _remember(folder: Path, source: str, viewed: Viewed) -> None:
    record = {
        "schema": SCHEMA,
        "source": source,
        "files": _outputs(folder, viewed),
        "is_partial": viewed.is_partial,
    }
    (folder / _RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
