"""Question: which files may a browser read, under which paths and with which rights?

A server is given a table and reads nothing else: a path is looked up as it was sent, undecoded, so
no spelling of ``..`` can name a file that is not in the table.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# A page may load nothing from elsewhere, be framed by none, and send no form.
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
REPORT_RIGHTS = (
    f"{_CLOSED}; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""What a report needs: all of it is in the page."""
PAGE_RIGHTS = f"{_CLOSED}; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
"""What a page of ours needs that fetches the trace."""
DATA_RIGHTS = f"{_CLOSED}; sandbox"
"""What is no page needs nothing."""

HTML, SCRIPT, STYLE = "text/html; charset=utf-8", "text/javascript", "text/css"
BYTES = "application/octet-stream"


@dataclass(frozen=True)
class Served:
    """Something that can be read: `body` is the bytes themselves or the file that holds them."""

    body: bytes | Path
    content_type: str
    rights: str = DATA_RIGHTS


Table = Mapping[str, Served]
"""What is served, by its path after the token: ``report.html``, ``perfetto/index.html``."""


def open_file(path: Path) -> tuple[BinaryIO, int]:
    """A regular file and its size in bytes.

    Raises:
        OSError: it is not there, or is a link or something else than a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(path)
        return os.fdopen(descriptor, "rb"), found.st_size
    except BaseException:
        os.close(descriptor)
        raise
