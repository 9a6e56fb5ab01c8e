"""`moeprof mcp`: the questions of `moeprof analyze` for coding assistants, over stdio."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import click

from moeprof.errors import MoeprofError

_INSTALL = "pip install 'moeprof[mcp]'"


@click.command("mcp")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="The folder below which runs are read; nothing outside of it is. Default: the current.",
)
def command(root: Path) -> None:
    """Serve runs to a coding assistant, read-only.

    Speaks the Model Context Protocol over standard input and output: an assistant starts this
    command itself. Its tools are questions, overview, ask and compare; docs/assistants.md says
    what each answers and how to register the command. Ends when the assistant does.

    Example:

        moeprof mcp --root runs
    """
    _check_installed()
    try:
        from moeprof.assistant.server import serve
    except ImportError as error:
        raise MoeprofError(f"mcp: the package mcp cannot be used ({error}); {_INSTALL}") from error
    serve(root.resolve())


def _check_installed() -> None:
    """Tell in one line that the extra is missing, or that its package is another one.

    Raises:
        MoeprofError: it is.
    """
    try:
        found = metadata.version("mcp")
    except metadata.PackageNotFoundError:
        raise MoeprofError(f"mcp: expected the package mcp, found none; {_INSTALL}") from None
    if found.partition(".")[0] != "2":  # the server's interface is another in each
        raise MoeprofError(f"mcp: expected mcp 2, found mcp {found}; {_INSTALL}")
