"""The `moeprof` command: a list of commands, each imported only when it is run."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

import click

from moeprof import __version__
from moeprof.errors import MoeprofError, PlanError, SelectionError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# name -> one line for `moeprof --help`; the command is `command` of moeprof.cli.<name>.
COMMANDS = {
    "capture": "Run a training script under the JAX profiler and analyse its steps.",
    "analyze": "Where the step of a captured run goes.",
    "compare": "What changed between two runs.",
    "report": "Write one self-contained HTML page about one or more runs.",
    "export": "Write a run as Parquet tables or as a Perfetto trace.",
    "view": "Open a run's report and its timeline in the browser.",
    "memory": "What fits on which devices, and what breaks first.",
    "pipeline": "The bubble of a pipeline: projected, measured, drawn.",
    "replay": "One op of a run as a script that runs it again, and its time.",
    "models": "Models that moeprof knows: parameters, experts, attention, and where that is from.",
    "hardware": "Devices that moeprof knows: peaks, memory, links, and where that is from.",
    "mcp": "Serve runs to a coding assistant, read-only.",
    "doctor": "What this machine can do, and why not.",
}


class _WrongUsage(click.ClickException):
    """A complaint of click's in one line; whose command it is about stands first."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        words = [word for word in sys.argv[1:2] if word in COMMANDS]  # where click does not say
        path = error.ctx.command_path if error.ctx else " ".join(["moeprof", *words])
        about = "".join(f"{word}: " for word in [path.partition(" ")[2]] if word)
        text = " ".join(error.format_message().split())
        super().__init__(f"moeprof: {about}{text} Try '{path} --help'.")

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(self.message, file=file, err=file is None)


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """Inside, click's complaints on usage, of four lines, become one; the help itself does not."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise _WrongUsage(error) from error


class LazyGroup(click.Group):
    """Loads a command's module when it is asked for: `--help` stays fast."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click's, with complaints of one line."""
        with _in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """The same, of the command that is asked for."""
        with _in_one_line():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"moeprof.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from `COMMANDS`, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moeprof")
def group() -> None:
    """Profiler and memory analyst for Mixture-of-Experts training in JAX.

    Example:

        moeprof capture train.py --config small.yml
    """


def main() -> None:
    """Run the command line; a `MoeprofError` becomes one line and exit code 1, or 2 for usage.

    So does an output that has no room for what is printed, or that is closed.
    """
    if sys.stdout is None:  # `moeprof … >&-`
        click.echo(
            "moeprof: standard output: expected one that can be written, found it closed. "
            "Send it to a file or to /dev/null",
            err=True,
        )
        sys.exit(1)
    try:
        try:
            group(prog_name="moeprof")
        finally:
            sys.stdout.flush()
    except MoeprofError as error:
        click.echo(f"moeprof: {error}", err=True)
        sys.exit(2 if isinstance(error, SelectionError | PlanError) else 1)
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        click.echo(f"moeprof: standard output: cannot be written ({error.strerror})", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is lost too
        sys.exit(1)
