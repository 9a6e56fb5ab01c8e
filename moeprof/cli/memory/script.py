"""Question: what does a user say of a script that is to be planned, and what is printed of it?"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from moeprof.errors import SelectionError

_Function = TypeVar("_Function", bound=Callable[..., object])
_PROGRAMS = 8
_SECONDS = 60.0
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
            default=_PROGRAMS,
            help=f"Stop a --script after so many programs of weight. Default: {_PROGRAMS}.",
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(0, min_open=True),
            default=_SECONDS,
            help=f"Stop a --script after so long. Default: {_SECONDS:g}.",
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
