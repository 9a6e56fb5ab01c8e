"""Question: how does a file appear whole or not at all, and never through a link?"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


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
