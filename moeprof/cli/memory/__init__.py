"""`moeprof memory`: what fits on which devices, told before anything runs."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moeprof.cli.memory.options import (
    MODULE,
    arguments_of,
    describes_a_run,
    given_to,
    names_a_program,
    spread,
    take_arguments,
)
from moeprof.cli.output import refuse_other_than_a_page
from moeprof.cli.progress import working
from moeprof.errors import SelectionError
from moeprof.interpreter import import_numpy

if TYPE_CHECKING:
    from moeprof.projector.any_step.command import Command
    from moeprof.projector.request import Wanted
    from moeprof.projector.setting import Setting
    from moeprof.reports.memory.document import CompiledInfo

# Programs that are run as they are: a script, MaxText's training, the command of a run.

_TAKEN = frozenset(
    {"script", "maxtext", "recorded", "is_compiled", "programs", "seconds", "as_json", "hardware",
     "devices", "mem_fraction"}
)  # fmt: skip
"""Options that mean something beside a program that is run."""


def program_of(ctx: click.Context) -> Command | None:
    """The program that is named, with its arguments; None: a model is.

    Raises:
        SelectionError: several are named.
        TraceError: there is no such run, or its record cannot be read or holds no command.
    """
    named = [name for name in ("script", "maxtext", "recorded") if ctx.params[name] is not None]
    if not named:
        return None
    from moeprof.projector.any_step.command import MAXTEXT_MODULE, Command, recorded_command

    if len(named) > 1:
        raise SelectionError(
            "memory: expected one of --script, --maxtext and --from, found "
            f"{' and '.join(_option(ctx, name) for name in named)}."
        )
    words, text = arguments_of(ctx), str(ctx.params[named[0]])
    if named == ["recorded"]:
        found = recorded_command(Path(text))
        return replace(found, arguments=(*found.arguments, *words))
    if named == ["maxtext"]:
        return Command(MAXTEXT_MODULE, True, (text, *words))
    return Command(text.removeprefix(MODULE), text.startswith(MODULE), words)


def planned_program(
    ctx: click.Context, program: Command, programs: int | None, seconds: float | None
) -> None:
    """Plan a script, or with its words MaxText, and print what it takes.

    Raises:
        SelectionError: other options stand beside it, or the number of devices does not.
    """
    is_maxtext = ctx.params["script"] is None and bool(program.maxtext)
    is_searched = is_maxtext and ctx.params["pdbs"] == "auto"
    given = [
        name
        for name in ctx.params
        if name not in _TAKEN
        and not (name == "pdbs" and is_searched)
        and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    named = next(n for n in ("script", "maxtext", "recorded") if ctx.params[n] is not None)
    option = f"memory {_option(ctx, named)}"
    if given:
        raise SelectionError(
            f"{option}: expected --devices, --hardware, --mem-fraction, --programs, --seconds or "
            f"--json beside it, found {', '.join(_option(ctx, n) for n in given)}. Arguments "
            "of the program stand after --."
        )
    devices = ctx.params["devices"] or program.devices
    if devices is None:
        raise SelectionError(f"{option}: expected --devices N, found none.")
    from moeprof.projector.any_step.command import plan_largest_batch, plan_maxtext
    from moeprof.projector.any_step.script import plan_script
    from moeprof.projector.any_step.words import described_script

    asked = {"programs": programs, "seconds": seconds}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    options |= {
        "hardware": ctx.params["hardware"] or program.hardware or "h100_sxm",
        "devices": devices,
        "mem_fraction": ctx.params["mem_fraction"],
    }
    tried: tuple[tuple[int, str], ...] = ()
    words, is_module = program.arguments, program.is_module
    if not is_maxtext:
        found = plan_script(program.target, words, is_module=is_module, **options)
    elif is_searched:
        start = _largest_by_closed_form(program.maxtext, options)
        found, tried = plan_largest_batch(program.maxtext, start, **options)
    else:
        found = plan_maxtext(program.maxtext, **options)
    if ctx.params["as_json"]:
        rows = [{"per_device_batch_size": size, "verdict": verdict} for size, verdict in tried]
        document = found.document() | ({"tried": rows} if tried else {})
        click.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    if tried:
        sizes = ", ".join(f"{size} {verdict}" for size, verdict in tried)
        click.echo(f"per_device_batch_size, compiled one by one: {sizes}\n")
    click.echo(described_script(found, shutil.get_terminal_size((80, 24)).columns))


def _largest_by_closed_form(words: tuple[str, ...], options: dict[str, Any]) -> int:
    """Where the search by the compiler begins: the largest batch per device of the closed form."""
    from moeprof.projector.answer import answer
    from moeprof.projector.request import as_usage, wanted
    from moeprof.projector.request.plan import Request

    said = {name: options[name] for name in ("hardware", "devices", "mem_fraction")}
    request = Request(maxtext=words, pdbs="auto", **said)
    with as_usage():
        setting = answer(wanted(request)).shown.breakdown.setting
    plan = setting.plan  # the devices of these axes share the sequences of a part
    rounds = setting.microbatches if plan.pipeline > 1 else 1
    shared = plan.tensor * plan.context * plan.pipeline
    return max(1, (setting.pdbs or 1) * rounds // shared)


def _refuse(ctx: click.Context, names: tuple[str, ...], expected: str) -> None:
    """Refuse options that would change nothing.

    Raises:
        SelectionError: one of them is given; ``expected`` says beside what it means something.
    """
    given = [_option(ctx, name) for name in names if ctx.params[name]]
    if given:
        raise SelectionError(f"memory {' and '.join(given)}: expected {expected} beside it.")


def _option(ctx: click.Context, name: str) -> str:
    """How a parameter is called on the command line."""
    return next(option.opts[0] for option in ctx.command.params if option.name == name)


# The command.

# name -> one line for the help; the command is the function of that name in `subcommands`.
COMMANDS = {
    "search": "Plans that fit, the best first: by fit, or by time where it is measured.",
    "explain-oom": "An out-of-memory message in the model's terms.",
    "diff": "What one compilation holds in memory that another does not.",
}


class MemoryGroup(click.Group):
    """A command with subcommands, each imported only when it is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What stands after ``--`` is of the program, and so are MaxText's words before it."""
        return super().parse_args(ctx, spread(take_arguments(ctx, args, COMMANDS), COMMANDS))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The subcommands that there are."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one subcommand."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module("moeprof.cli.memory.subcommands")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
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
@names_a_program
@click.option(
    "--compile",
    "is_compiled",
    is_flag=True,
    help="Ask XLA's compiler too (a minute): for the bundled model's step, or MaxText's own.",
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
    script: str | None,
    maxtext: str | None,
    recorded: Path | None,
    programs: int | None,
    seconds: float | None,
    **options: object,
) -> None:
    """What fits: weights, the arena of a step, what lies beside it, per strategy and pdbs.

    Computed from the model's dimensions in well under a second; no device and no JAX are needed.
    pdbs (per-device batch size) counts the sequences that one device takes at a time. Three pools
    are kept apart: what a step is given (args), XLA's arena (temp), and what other libraries take
    beside XLA's pool (outside).

    With --script a training script of any kind is run as it is, on this machine, without a device,
    up to its first programs, which XLA's compiler then lays out. --maxtext takes MaxText's own
    command line, with --compile its own training.

    Examples:

        moeprof memory --model deepseek_v3 --hardware mi355x --ep 8 --fsdp 8

        moeprof memory --model config.json --strategy sparse-gmm --pdbs 4 --calibrate runs/one

        moeprof memory --script train.py --devices 64 --hardware h100_sxm -- --batch 8

        moeprof memory --maxtext base.yml model_name=mixtral-8x7b --devices 8
    """
    if ctx.invoked_subcommand is not None:
        return
    program = program_of(ctx)
    words = program.maxtext if program and script is None else ()
    if program and (is_compiled or not words):
        planned_program(ctx, program, programs, seconds)
        return
    _refuse(ctx, ("programs", "seconds"), "--script, --from, or --maxtext with --compile")
    if program:
        options |= {"devices": options["devices"] or program.devices, "maxtext": words}
        options["hardware"] = options["hardware"] or program.hardware
    import_numpy()
    from moeprof.projector.answer import Projecting, answer
    from moeprof.projector.memory import project
    from moeprof.projector.request import as_usage, wanted
    from moeprof.projector.request.plan import Request
    from moeprof.reports.memory.document import document_of, to_json

    if html is not None:
        inputs = [Path(str(read)) for read in (run, options["model"]) if read]
        refuse_other_than_a_page(html, "--html", inputs)
    if run is not None:
        _refuse(ctx, ("detail", "is_compiled", "html"), "no --calibrate")
    request = Request(**options)  # type: ignore[arg-type]
    if is_compiled:
        from moeprof.session.plan_search import compilable

        request = compilable(request, "--compile")
    asked = wanted(request)
    if run is not None:
        _calibrate(asked, run, correction, as_json=as_json)
        return
    projecting: Projecting = project
    if correction is not None:
        from moeprof.projector.correction import correcting

        projecting = correcting(project, correction)
        asked = replace(asked, searched_by=(*asked.searched_by, "--correction", str(correction)))
    with as_usage():  # what cannot be projected was asked for by an option
        found, plan = answer(asked, detail, projecting), None
        if is_compiled:
            setting = found.shown.breakdown.setting
            is_open = options["pdbs"] == "auto" and detail is None
            pdbs, plan = _compiled(setting, is_open=is_open)
            if pdbs != setting.pdbs:
                found = answer(asked, f"{setting.strategy.name}@{pdbs}", projecting)
        document = document_of(found, given_to("memory"), plan)
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


# ``--compile``: the compiler's own plan of a cell, beside the closed form.


def _compiled(setting: Setting, *, is_open: bool) -> tuple[int | None, CompiledInfo]:
    """The step of a setting as laid out for its hardware, which need not be there, and its pdbs.

    ``is_open``: of the largest pdbs that fits by the compiler, begun at the setting's own.

    Raises:
        MoeprofError: the compiler is not installed, cannot be had for the hardware, or fails.
    """
    from moeprof.reports.memory.document import compiled_info
    from moeprof.session.plan_search import compiled_step, largest_compiled

    with working("compiling the step"):
        if not is_open:
            return setting.pdbs, compiled_info(compiled_step(setting))
        pdbs, plan, tried = largest_compiled(setting)
        return pdbs, compiled_info(plan, tried)


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
