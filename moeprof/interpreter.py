"""Question: how does Python itself work for moeprof: its search for garbage, and a second one?

A module is not run by ``python -m``, which looks in the current folder first: in a checkout of
moeprof, or beside a folder of that name, another package than the one that asks would answer.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

_CODE = (
    "import sys; sys.path.insert(0, {root!r}); import moeprof; del sys.path[0]; "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this very package, wherever it is started."""
    root = str(Path(__file__).absolute().parents[1])
    return [sys.executable, "-c", _CODE.format(root=root, module=module), *arguments]


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
