"""`moeprof memory`: what fits on which devices, told before anything runs."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from moeprof.cli.memory.options import OptionsOfMany, describes_a_run
from moeprof.cli.output import refuse_other_than_a_page
from moeprof.cli.progress import working
from moeprof.errors import SelectionError
from moeprof.projector.any_step import PROGRAMS, SECONDS

if TYPE_CHECKING:
    from moeprof.projector.request import Wanted
    from moeprof.projector.request.config import Request
    from moeprof.projector.setting import Setting
    from moeprof.reports.memory.document import CompiledInfo

# Scripts: what a user says of one that is to be planned, and what is printed of it.

_Function = TypeVar("_Function", bound=Callable[..., object])
_ARGUMENTS = "moeprof.script_arguments"
_TAKEN = frozenset(
    {"script", "programs", "seconds", "as_json", "hardware", "devices", "mem_fraction"}
)
"""Options that mean something beside ``--script``."""


def with_script(command: _Function) -> _Function:
    """Add the options of scripts."""
    options = [
        click.option(
            "--script",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Plan a training script as it is: its arguments after --, with --devices.",
        ),
        click.option(
            "--programs",
            type=click.IntRange(1),
            default=PROGRAMS,
            help=f"Stop a --script after so many programs, once it loops. Default: {PROGRAMS}.",
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(0, min_open=True),
            default=SECONDS,
            help=f"Stop a --script after so long. Default: {SECONDS:g}.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def take_arguments(ctx: click.Context, args: list[str]) -> list[str]:
    """The command's own arguments; those of a script, after ``--``, are kept beside."""
    is_script = any(arg == "--script" or arg.startswith("--script=") for arg in args)
    if not is_script or "--" not in args:
        return args
    end = args.index("--")
    ctx.meta[_ARGUMENTS] = tuple(args[end + 1 :])
    return args[:end]


def planned_script(
    ctx: click.Context, script: Path, programs: int, seconds: float, *, as_json: bool
) -> None:
    """Plan the script and print what it takes.

    Raises:
        SelectionError: other options stand beside it, or the number of devices does not.
    """
    _check_alone(ctx)
    devices = ctx.params["devices"]
    if devices is None:
        raise SelectionError("memory --script: expected --devices N, found none.")
    from moeprof.projector.any_step.script import plan_script
    from moeprof.projector.any_step.words import described_script

    found = plan_script(
        script,
        ctx.meta.get(_ARGUMENTS, ()),
        hardware=ctx.params["hardware"] or "h100_sxm",
        devices=devices,
        mem_fraction=ctx.params["mem_fraction"],
        programs=programs,
        seconds=seconds,
    )
    if as_json:
        click.echo(json.dumps(found.document(), indent=1, allow_nan=False))
    else:
        click.echo(described_script(found, shutil.get_terminal_size((80, 24)).columns))


def _check_alone(ctx: click.Context) -> None:
    """Refuse options that describe a model: the script is one."""
    given = [
        name
        for name in ctx.params
        if name not in _TAKEN
        and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    options = {option.name: option.opts[0] for option in ctx.command.params}
    if given:
        raise SelectionError(
            f"memory --script: expected --devices, --hardware, --mem-fraction, --programs, "
            f"--seconds or --json beside it, found {', '.join(str(options[n]) for n in given)}. "
            "Arguments of the script stand after --."
        )


# The command.

# name -> one line for the help; the command is moeprof/cli/memory/<name>.py's `command`.
COMMANDS = {
    "search": "Plans that fit, ranked by the estimated time of a step.",
    "explain-oom": "An out-of-memory message in the model's terms.",
    "diff": "What one compilation holds in memory that another does not.",
}


class MemoryGroup(OptionsOfMany):
    """A command with subcommands, each imported only when it is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What stands after ``--`` is of the script."""
        return super().parse_args(ctx, take_arguments(ctx, args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The subcommands that there are."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one subcommand."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"moeprof.cli.memory.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A subcommand; a word that is none may be meant as a model."""
        if args[0] not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise SelectionError(
                f"memory: expected options or one of {known}, found {args[0]!r}. "
                f"A model is given as --model {args[0]}."
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group("memory", cls=MemoryGroup, invoke_without_command=True)
@describes_a_run
@click.option("--detail", metavar="STRATEGY@PDBS", help="The cell whose account is shown in full.")
@click.option(
    "--calibrate",
    "run",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Compare with a captured run, one strategy and pdbs; --correction FILE stores the factor.",
)
@click.option(
    "--correction",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Correct the arena by the factors that --calibrate stored.",
)
@with_script
@click.option(
    "--compile",
    "is_compiled",
    is_flag=True,
    help="Ask XLA's compiler for the cell that is shown too (the bundled model's step, a minute).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.memory/1.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one self-contained HTML page as well.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    detail: str | None,
    run: Path | None,
    correction: Path | None,
    is_compiled: bool,
    as_json: bool,
    html: Path | None,
    script: Path | None,
    programs: int,
    seconds: float,
    **options: object,
) -> None:
    """What fits: weights, the arena of a step, what lies beside it, per strategy and pdbs.

    Computed from the model's dimensions in well under a second; no device and no JAX are needed.
    pdbs (per-device batch size) counts the sequences that one device takes at a time. Three pools
    are kept apart: what a step is given (args), XLA's arena (temp), and what other libraries take
    beside XLA's pool (outside).

    With --script a training script of any kind is run as it is, on this machine, without a device,
    up to its first programs, which XLA's compiler then lays out.

    Examples:

        moeprof memory --model deepseek_v3 --hardware mi355x --ep 8 --fsdp 8

        moeprof memory --model config.json --strategy sparse-gmm --pdbs 4 --calibrate runs/one

        moeprof memory --script train.py --devices 64 --hardware h100_sxm -- --batch 8
    """
    if ctx.invoked_subcommand is not None:
        return
    if script is not None:
        planned_script(ctx, script, programs, seconds, as_json=as_json)
        return
    from moeprof.projector.answer import Projecting, answer
    from moeprof.projector.memory import project
    from moeprof.projector.request import as_usage, wanted
    from moeprof.projector.request.config import Request
    from moeprof.reports.memory.document import document_of, to_json

    if html is not None:
        inputs = [Path(str(read)) for read in (run, options["model"]) if read]
        refuse_other_than_a_page(html, "--html", inputs)
    request = Request(**options)  # type: ignore[arg-type]
    asked = wanted(_of_bundled(request) if is_compiled else request)
    if run is not None:
        _calibrate(asked, run, correction, as_json=as_json)
        return
    projecting: Projecting = project
    if correction is not None:
        from moeprof.projector.correction import correcting

        projecting = correcting(project, correction)
    with as_usage():  # what cannot be projected was asked for by an option
        found = answer(asked, detail, projecting)
        plan = _compiled(found.shown.breakdown.setting) if is_compiled else None
        document = document_of(found, _arguments(), plan)
    if html is not None:
        from moeprof.reports.memory.page import write_page

        with working("writing the page"):
            write_page(document, html)
        click.echo(f"moeprof: page written to {html}", err=True)
    if as_json:
        click.echo(to_json(document))
    else:
        from rich.console import Console

        from moeprof.reports.memory.terminal import drawn

        console = Console(highlight=False)
        console.print(drawn(document, console.width), soft_wrap=True)


def _arguments() -> list[str]:
    """The arguments of this command, without those that only say how the answer is shown."""
    given = sys.argv[2:] if sys.argv[1:2] == ["memory"] else []
    kept: list[str] = []
    place = 0
    while place < len(given):
        if given[place] in ("--html", "--detail"):
            place += 2
            continue
        if given[place] != "--json" and not given[place].startswith(("--html=", "--detail=")):
            kept.append(given[place])
        place += 1
    return kept


# ``--compile``: the compiler's own plan of a cell, beside the closed form.

BUNDLED = "bundled"


def _of_bundled(request: Request) -> Request:
    """The request with the bundled model's framework: its step is what is compiled.

    Raises:
        SelectionError: another framework is asked for.
    """
    if request.framework not in (None, BUNDLED):
        raise SelectionError(
            f"--compile: compiles the bundled model's step, so expected --world {BUNDLED}, found "
            f"{request.framework!r}. Another program is compiled by "
            "moeprof.projector.compiled.plan."
        )
    return replace(request, framework=BUNDLED)


def _compiled(setting: Setting) -> CompiledInfo:
    """Compile the step of a setting for its hardware, which need not be there.

    Raises:
        MoeprofError: the compiler is not installed, cannot be had for the hardware, or fails.
    """
    from moeprof.projector.compiled.bundled import compile_bundled
    from moeprof.reports.memory.document import compiled_info

    with working("compiling the step"):
        return compiled_info(compile_bundled(setting))


# ``--calibrate``: a projection beside a run, and what follows.


def _calibrate(wanted: Wanted, run: Path, correction: Path | None, *, as_json: bool) -> None:
    """Print the projection beside the run; store its factor where a file is given.

    Raises:
        SelectionError: several strategies or batches are asked for, or none.
        SpecError: the run does not match, so that there is nothing to store.
        TraceError: the run cannot be read.
    """
    from moeprof.projector.calibrate import calibrate, measured
    from moeprof.projector.correction import store
    from moeprof.projector.memory import project
    from moeprof.reports.memory.calibration import (
        build_calibration,
        calibration_json,
        calibration_text,
    )

    if len(wanted.strategies) != 1 or len(wanted.batches) != 1:
        raise SelectionError(
            "--calibrate: expected the run's own --strategy and --pdbs, one each, found "
            f"{len(wanted.strategies)} strategies and {len(wanted.batches) or 'no'} pdbs."
        )
    (strategy,), (pdbs,) = wanted.strategies, wanted.batches
    breakdown = project(replace(wanted.setting, strategy=strategy, pdbs=pdbs))
    with working("reading the run"):
        found = calibrate(breakdown, measured(run))
    document = build_calibration(found)
    if as_json:
        click.echo(calibration_json(document))
    else:
        from rich.console import Console

        Console(highlight=False).print(calibration_text(document), soft_wrap=True)
    if correction is not None:
        store(correction, found)
        click.echo(f"moeprof: correction stored in {correction}", err=True)
