"""Question: what do the examples of docs/python.md print today?

Runs the page's examples, one after the other as a reader would, and puts in what they print:

    python docs/write_python.py
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "python.md"
_BLOCK = re.compile(r"(?<=```python\n)(>>> .*?)(?=```\n)", re.DOTALL)


def written(page: str) -> str:
    """The page with what its examples print; they share their names."""
    names: dict[str, object] = {"__name__": "page"}
    with _among_the_captures():
        return _BLOCK.sub(lambda found: _run(found[1], names), page)


def _run(block: str, names: dict[str, object]) -> str:
    return "".join(
        piece if isinstance(piece, str) else _typed(piece.source) + _printed(piece.source, names)
        for piece in doctest.DocTestParser().parse(block)
    )


def _typed(source: str) -> str:
    """Code as it is typed: a prompt before each line."""
    first, *more = source.splitlines()
    return "".join(
        f"{line}\n" for line in (f">>> {first}", *(f"... {line}".rstrip() for line in more))
    )


def _printed(source: str, names: dict[str, object]) -> str:
    """What an interpreter shows for it; an error without the lines that it went through."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(source, PAGE.name, "single"), names)
        except Exception as error:
            name = f"{type(error).__module__}.{type(error).__name__}"
            print(f"Traceback (most recent call last):\n  …\n{name}: {error}")
    lines = (line.rstrip() for line in out.getvalue().splitlines())
    return "".join(f"{line or doctest.BLANKLINE_MARKER}\n" for line in lines)


@contextlib.contextmanager
def _among_the_captures() -> Iterator[None]:
    """In an empty folder in which the captures lie where the page has them."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tests").symlink_to(DOCS.parent / "tests")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
