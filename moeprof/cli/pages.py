"""Question: where may a command put a page?"""

from __future__ import annotations

from pathlib import Path

import click


def refuse_other_than_a_page(path: Path, option: str) -> None:
    """A slip of the hand must not replace a profile or a run's record by a page.

    Raises:
        click.BadParameter: the name is not one of a page; wrong usage.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise click.BadParameter(
            f"expected a name that ends in .html, found {path}.", param_hint=option
        )
