"""Question: which session and hosts of a run does a command read, on which hardware did it run?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., object])


def selects(command: _Function) -> _Function:
    """Add ``--session`` and ``--host``; they arrive as ``session`` and ``hosts``."""
    session = click.option(
        "--session",
        metavar="NAME",
        help="Of several sessions the one to read, by the name of its folder. Default: the newest.",
    )
    host = click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="NAME",
        help="Of several hosts one to read. Repeatable. Default: all.",
    )
    return session(host(command))


def names_hardware(command: _Function) -> _Function:
    """Add ``--hardware``; it arrives as ``hardware``, empty where it is not given."""
    return click.option(
        "--hardware",
        metavar="KEY",
        default="",
        help="The device that the run was on, as `moeprof hardware` lists it. Default: what the "
        "profile says.",
    )(command)
