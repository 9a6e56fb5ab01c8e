"""`moeprof capture`: run a training script under the profiler, then say where its step goes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli.output import screen, show
from moeprof.cli.selection import names_parts
from moeprof.errors import CaptureError, MoeprofError

if TYPE_CHECKING:
    from moeprof.recording.launch import Outcome
    from moeprof.recording.options import CaptureOptions, ProfilerSettings
    from moeprof.tables.name_rule import NameRules


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a reader of stderr that is gone stops no training
        click.echo(line, err=True)


def _hosts(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise click.BadParameter(f"expected process indices such as 0,3, found {text!r}") from None


def _profiler(
    ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]
) -> ProfilerSettings:
    from moeprof.recording.options import parse_profiler_options

    try:
        return parse_profiler_options(pairs)
    except CaptureError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    "capture", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
@click.option("--out", type=click.Path(path_type=Path), help="Run folder to write.")
@click.option(
    "--skip",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Settled steps to let pass.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="Steps to record. Default: 8; 3 to 7 where more would take over 20 s, or over 512 MiB of "
    "memory.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Record whole steps for so long instead.",
)
@click.option(
    "--every",
    type=click.IntRange(1),
    help="A further window every N steps; without --steps of at most N/2.",
)
@click.option("--hosts", callback=_hosts, help="Process indices that record, as 0,3; default all.")
@click.option(
    "--export-timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds after which an export is given up.",
)
@click.option(
    "--option",
    "profiler",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_profiler,
    help="Profiler option.",
)
@click.option(
    "--routing",
    type=click.Choice(["off", "auto"]),
    default="off",
    show_default=True,
    help="auto: routers' indices become results of the step until the window closes.",
)
@click.option("--no-report", is_flag=True, help="Write the run folder only.")
@names_parts
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    out: Path | None,
    skip: int,
    steps: int | None,
    seconds: float | None,
    every: int | None,
    hosts: tuple[int, ...] | None,
    export_timeout: float | None,
    profiler: ProfilerSettings,
    routing: str,
    no_report: bool,
    names: NameRules | None,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT under the JAX profiler, unchanged, and analyse its steps.

    Waits until compilation has settled, records a few whole steps, and writes a run folder. The
    exit code is the script's own. Where the run folder has files in it already, as when a
    scheduler starts the job again, the run goes to a new one beside it, OUT-2.

    With --routing auto one thing of the program changes: until the window closes (with several
    processes until it ends), its step also returns the indices of its routers (4 bytes for each
    token, layer and chosen expert), which are counted behind the window. Results, shardings and
    collectives stay.

    Example:

        moeprof capture --steps 5 train.py --config small.yml
    """
    from moeprof.recording.options import LEAST_STEPS, CaptureOptions

    if every is not None and seconds is None and every <= (steps or LEAST_STEPS):
        than = f"--steps {steps}" if steps else f"{LEAST_STEPS}, the least steps of a window"
        raise click.BadParameter(f"expected more than {than}, found {every}.", param_hint="--every")
    if not is_module and not Path(script).exists():
        raise click.BadParameter(f"script {script} does not exist.", param_hint="SCRIPT")
    _require_wrapt()
    target = ["-m", script] if is_module else [script]
    run_dir = _claim(out, script)
    if run_dir is None:
        os.execv(sys.executable, [sys.executable, *target, *arguments])
    options = CaptureOptions(
        run_dir=run_dir,
        asked_for="" if out is None else str(out.absolute()),
        skip_steps=skip,
        record_steps=steps,
        record_seconds=seconds,
        every_steps=every,
        hosts=hosts,
        export_timeout_s=export_timeout,
        profiler=profiler,
        routing=routing,
    )
    sys.exit(_run(target, arguments, options, no_report, names))


def _claim(out: Path | None, script: str) -> Path | None:
    """The run folder, absolute: the script may change its working directory.

    None where none can be made: a job that a scheduler starts must train all the same.
    """
    from moeprof.recording.run_folder import claim_free, default_run_dir

    try:
        wanted = (out or default_run_dir(script, datetime.now())).absolute()
        return claim_free(wanted, os.environ, _say)
    except CaptureError as error:
        _say(f"moeprof: {error}: {script} runs unrecorded")
        return None


def _run(
    target: list[str],
    arguments: tuple[str, ...],
    options: CaptureOptions,
    no_report: bool,
    names: NameRules | None,
) -> int:
    """Run it, say how it ended and where the results lie; the script's exit code."""
    from moeprof.recording.host_facts import preflight
    from moeprof.recording.launch import run_script
    from moeprof.recording.signals import ending_with

    for obstacle in preflight(os.environ):
        _say(f"moeprof: warning: {obstacle.name}: {obstacle.text}")
    outcome = run_script([*target, *arguments], options, _say)
    _say(f"{target[-1]} ended with exit code {outcome.exit_code}")
    run_dir = outcome.run_dir or options.run_dir
    later = f"the analysis is left to `moeprof analyze {_shown(run_dir)}`"
    with (
        _keeping_exit_code(),
        ending_with(outcome.exit_code, lambda name: _say(f"moeprof: {name}: {later}")),
    ):
        if outcome.is_terminated and not no_report:
            _say(f"moeprof: terminated: {later}")
        _tell_results(run_dir, outcome, no_report or outcome.is_terminated, names)
    return outcome.exit_code


@contextlib.contextmanager
def _keeping_exit_code() -> Iterator[None]:
    """The exit code is the script's, even where nothing can be printed any more."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        _say(f"moeprof: standard output: cannot be written ({error.strerror})")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is lost too


def _tell_results(
    run_dir: Path, outcome: Outcome, no_report: bool, names: NameRules | None
) -> None:
    if outcome.process_index == 0 and (run_dir / "oom.txt").is_file():
        _say(f"moeprof: out of memory: moeprof memory explain-oom {_shown(run_dir)}")
    if no_report or outcome.process_index != 0 or not _has_profiles(run_dir, outcome):
        click.echo(f"Run  {_shown(run_dir)}")
    else:
        _report(run_dir, names)


def _has_profiles(run_dir: Path, outcome: Outcome) -> bool:
    """Of several processes the first speaks for all, once their profiles are there."""
    from moeprof.recording.run_folder import wait_for_siblings

    try:
        return bool(wait_for_siblings(run_dir, outcome.meta)["status"] != "empty")
    except (OSError, ValueError):  # meta.json cannot be read: its writer has said why
        return False


def _require_wrapt() -> None:
    if importlib.util.find_spec("wrapt") is None:
        raise CaptureError(
            "capture: expected the package wrapt, found none. Install it with "
            "`pip install 'moeprof[jax]'`."
        )


def _report(run_dir: Path, names: NameRules | None) -> None:
    """Print the summary and write the page; a failure here is one line, the run stays."""
    page = run_dir / "report.html"
    try:
        from moeprof.cli.findings import read_document
        from moeprof.cli.progress import working
        from moeprof.reports.run import terminal as text
        from moeprof.reports.run.page import write_page

        document = read_document(run_dir, names=names, is_drawn=True, as_named=True)
        summary = text.summary(document, screen().height)
        unwritten = ""
        with working("writing the page"):
            try:
                write_page([document], page, f"`moeprof report {_shown(run_dir)} -o`")
            except MoeprofError as error:  # a disk that is full hides no summary
                unwritten = str(error)
    except Exception as error:  # the exit code is the script's, whatever the analysis does
        _say(f"moeprof: analysis failed: {type(error).__name__}: {error}")
        click.echo(f"Run  {_shown(run_dir)}")
        return
    click.echo()
    show(summary)
    click.echo()
    if unwritten:
        _say(f"moeprof: {unwritten}")
    click.echo(f"Run  {_shown(run_dir)}" if unwritten else f"Report  {_shown(page)}")


def _shown(path: Path) -> Path:
    """`path` as short as it can be said from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
