"""Work that makes very many objects and hardly any garbage, without the search for garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the search for circles of objects: the more there are the longer each search takes.

    What is no longer used and in no circle is freed all the same.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
