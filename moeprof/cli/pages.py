"""Question: where may a command put what it writes?"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from moeprof.errors import MoeprofError


def refuse_other_than_a_page(path: Path, option: str, inputs: Iterable[Path | str] = ()) -> None:
    """A slip of the hand must not replace a profile or a run's record by a page.

    Raises:
        click.BadParameter: the name is not one of a page, or `path` is one of `inputs`; wrong
            usage.
        MoeprofError: nothing can be written there.
    """
    if not path.name:
        raise click.BadParameter(
            "expected a name that ends in .html, found an empty one.", param_hint=option
        )
    if path.suffix.lower() not in (".html", ".htm"):
        raise click.BadParameter(
            f"expected a name that ends in .html, found {path}.", param_hint=option
        )
    refuse_an_input(path, option, inputs)
    refuse_no_place(path, option)


def refuse_an_input(path: Path, option: str, inputs: Iterable[Path | str]) -> None:
    """What is read must not be replaced by what is written, by whatever name or link.

    Raises:
        click.BadParameter: `path` is one of `inputs`; wrong usage.
    """
    for read in inputs:
        if isinstance(read, str):  # it lies in a store
            continue
        if path.exists() and read.exists() and path.samefile(read):
            raise click.BadParameter(
                f"expected a file of its own, found {path}, which is the input {read}.",
                param_hint=option,
            )


def refuse_no_place(path: Path, option: str) -> None:
    """A place that cannot be written is told before the work, not after it.

    Raises:
        MoeprofError: the folder of `path` is not there, or nothing may be written into it.
    """
    folder = path.parent
    if not folder.exists():
        found = f"no folder {folder}"
    elif not folder.is_dir():
        found = f"{folder}, which is no folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        found = f"the folder {folder}, into which nothing may be written"
    else:
        return
    raise MoeprofError(
        f"{path}: expected a place that can be written, found {found}. "
        f"Give another one with {option}"
    )
