"""Question: where may a command put what it writes?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click


def refuse_other_than_a_page(path: Path, option: str, inputs: Iterable[Path] = ()) -> None:
    """A slip of the hand must not replace a profile or a run's record by a page.

    Raises:
        click.BadParameter: the name is not one of a page, or `path` is one of `inputs`; wrong
            usage.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise click.BadParameter(
            f"expected a name that ends in .html, found {path}.", param_hint=option
        )
    refuse_an_input(path, option, inputs)


def refuse_an_input(path: Path, option: str, inputs: Iterable[Path]) -> None:
    """What is read must not be replaced by what is written, by whatever name or link.

    Raises:
        click.BadParameter: `path` is one of `inputs`; wrong usage.
    """
    for read in inputs:
        if path.exists() and read.exists() and path.samefile(read):
            raise click.BadParameter(
                f"expected a file of its own, found {path}, which is the input {read}.",
                param_hint=option,
            )
