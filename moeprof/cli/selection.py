"""Question: which part of a run does a command read, on which hardware, by which names?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from moeprof.tables.name_rule import NameRules

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


class RunPath(click.Path):
    """A run that is there; one in a store arrives as text."""

    def __init__(self) -> None:
        """A path that exists, or an address such as ``s3://bucket/run``."""
        super().__init__(exists=True, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """The path, or the address as it is."""
        if isinstance(value, str) and "://" in value:
            from moeprof.ingest.sources.store import is_remote

            if is_remote(value):
                return value
        return super().convert(value, param, ctx)


def reads_hosts(command: _Function) -> _Function:
    """Add ``--scheduler``, ``--workers`` and ``--by-host``; they arrive by these names."""
    scheduler = click.option(
        "--scheduler",
        metavar="ADDRESS",
        default="",
        help="Read the hosts of the run on the workers of this Dask scheduler, as "
        "tcp://node0:8786. They must see the run's files.",
    )
    workers = click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(min=0),
        help="Read hosts by N processes of this machine; 0 for this process alone. Default: one "
        "per core where Dask is installed, as far as memory holds a host for each.",
    )
    by_host = click.option(
        "--by-host/--at-once",
        default=None,
        help="Read one host after the other, in little memory, or all at once, which answers every "
        "question. Default: by host where profiles of several hosts are more than 1 GB.",
    )
    return scheduler(workers(by_host(command)))


def check_ways(by_host: bool | None, scheduler: str, workers: int | None) -> None:
    """Nothing, where these options of `reads_hosts` go together.

    Raises:
        click.UsageError: one of them would be ignored.
    """
    given = [
        *(["--at-once"] if by_host is False else []),
        *(["--scheduler"] if scheduler else []),
        *(["--workers"] if workers is not None else []),
    ]
    if len(given) > 1:
        raise click.UsageError(
            f"expected one of --at-once, --scheduler and --workers, found {' and '.join(given)}: "
            "workers read host by host, those of a scheduler or of this machine."
        )


def keeps_answers(command: _Function) -> _Function:
    """Add ``--no-cache``; whether answers may be kept and used again arrives as ``is_kept``."""
    return click.option(
        "--no-cache",
        "is_kept",
        is_flag=True,
        flag_value=False,
        default=True,
        help="Read the run anew. Default: answers to the same question about the same files are "
        "kept in the user's cache directory, 256 MiB at most; MOEPROF_CACHE=off keeps none.",
    )(command)


def names_hardware(command: _Function) -> _Function:
    """Add ``--hardware``; it arrives as ``hardware``, empty where it is not given."""
    return click.option(
        "--hardware",
        metavar="KEY",
        default="",
        help="The device that the run was on, as `moeprof hardware` lists it. Default: what the "
        "profile says.",
    )(command)


def _read(ctx: click.Context, param: click.Parameter, path: Path | None) -> NameRules | None:
    if path is None:
        return None
    if str(path) == "-":
        raise click.BadParameter("rules are not read from standard input; give a file.")
    from moeprof.session.name_rules import read_names

    return read_names(path)


def names_parts(command: _Function) -> _Function:
    """Add ``--names``; it arrives as ``names``, `NameRules` or None where it is not given."""
    return click.option(
        "--names",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=_read,
        help="Rules that name parts of the step before all else: a YAML list, each with a "
        "component, and scope, function, source or op.",
    )(command)
