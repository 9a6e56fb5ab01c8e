"""Question: what do all pages have: templates, scripts and styles, and nothing from elsewhere?

plotly.js is embedded once, packed with gzip: the browser unpacks it when the first figure comes
into sight, so the page itself stands at once. A file appears whole or not at all, and never through
a link (`whole_file`).
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import importlib.resources
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import jinja2
from markupsafe import Markup, escape

from moeprof.answers.story import NAME_WIDTH
from moeprof.answers.values import shortened
from moeprof.errors import MoeprofError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """What is written takes the place of `path` at the end; after an error that is as it was.

    A link is replaced, not what it leads to.

    Raises:
        OSError: there is no room, or the place cannot be written.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".moeprof-", delete=False) as made:
        try:
            yield made
            made.close()
            os.chmod(made.name, 0o666 & ~_umask())
            os.replace(made.name, path)
        except BaseException:
            os.unlink(made.name)
            raise


def _umask() -> int:
    """What new files are denied here; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


# What would end a script element or open a comment in one, and the two line ends that are not
# line ends to JSON but were to JavaScript.
_IN_SCRIPT = {c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

_STYLES = ("page.css", "timeline.css")
_SCRIPTS = (
    *("tables.js", "figures.js", "flame.js", "documents.js"),
    *("timeline_model.js", "timeline_pen.js", "timeline_strip.js", "timeline_paint.js"),
    *("timeline_view.js", "timeline_tip.js", "timeline_walk.js", "timeline_keys.js"),
    *("timeline_pointer.js", "timeline.js", "page.js"),
)


def rendered(template: str, documents: list[str], **values: object) -> str:
    """A page as text: UTF-8 safe, no reference to the network.

    ``documents`` are JSON texts that the page carries.
    """
    return (
        _environment()
        .get_template(template)
        .render(
            documents=[Markup(_escaped(document)) for document in documents],
            style=Markup("".join(_source(name) for name in _STYLES)),
            theme=Markup(_source("theme.js")),
            script=Markup("".join(_source(name) for name in _SCRIPTS)),
            plotly=packed_plotly().result(),
            **values,
        )
    )


def fragment(template: str, **values: object) -> str:
    """A piece of a page, as a notebook shows it: no script, no style but that of its tags."""
    return _environment().get_template(template).render(**values)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = embedded_json
    environment.filters["short"] = lambda text: shortened(text, NAME_WIDTH)
    environment.filters["cut"] = shortened_markup
    return environment


def write(page: str, out: Path, option: str) -> None:
    """Write a page to `out`, which ``option`` named; whole, or not at all.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    try:
        with whole_file(out) as file:
            file.write(page.encode())
    except OSError as error:
        raise MoeprofError(
            f"report {out}: expected a place that can be written, found: {error.strerror}. "
            f"Give another one with {option}"
        ) from error


def embedded_json(value: object) -> Markup:
    """`value` as JSON that can stand inside a script element."""
    return Markup(_escaped(json.dumps(value, allow_nan=False)))


def shortened_markup(text: str, width: int) -> Markup:
    """`text` cut to `width` characters, the whole of it in a tooltip."""
    cut = shortened(text, width)
    if cut == text:
        return escape(text)
    return Markup('<span title="{}">{}</span>').format(text, cut)


def _escaped(text: str) -> str:
    for letter, written in _IN_SCRIPT.items():  # ten times as fast as `str.translate`
        text = text.replace(letter, written)
    return text


def _source(name: str) -> str:
    folder = importlib.resources.files("moeprof.reports") / "templates"
    return (folder / name).read_text(encoding="utf-8")


@functools.cache
def packed_plotly() -> Future[str]:
    """plotly.js as a page carries it. A thread packs it: ask before a document is made."""
    return ThreadPoolExecutor(1).submit(_packed_plotly)


def _packed_plotly() -> str:
    """Base64 of gzip: a third of its size."""
    source = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    # mtime=0: the same documents give the same file.
    return base64.b64encode(gzip.compress(source.read_bytes(), 9, mtime=0)).decode("ascii")
