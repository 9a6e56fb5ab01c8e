"""Question: how does Python itself work for moeprof: its search for garbage, and a second one?

A module is not run by ``python -m``, which looks in the current folder first: in a checkout of
moeprof, or beside a folder of that name, another package than the one that asks would answer.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_CODE = (
    "import sys; sys.path.insert(0, {root!r}); import moeprof; del sys.path[0]; "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


_THREADS = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """Import numpy, whose library of matrix products starts a thread per core, without these.

    Commands that multiply no matrix end a tenth of a second of CPU time earlier. What a user set
    stays, and no process that is started later sees anything of it.
    """
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[_THREADS]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this very package, wherever it is started."""
    root = str(Path(__file__).absolute().parents[1])
    return [sys.executable, "-c", _CODE.format(root=root, module=module), *arguments]


def module_file(name: str) -> Path | None:
    """The file that ``python -m NAME`` runs, without importing the packages that it is in."""
    top, *inner = name.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None:
        return None
    roots = spec.submodule_search_locations
    if not roots:
        return Path(spec.origin) if spec.origin and not inner else None
    places = [Path(root, *inner) for root in roots]
    files = [f for place in places for f in (place.with_suffix(".py"), place / "__main__.py")]
    return next((file for file in files if file.is_file()), None)


_PACKAGES = re.compile(r"[^\s'\"]*/(?:site|dist)-packages/")


def installed_as(text: str) -> str:
    """Paths of installed packages from the package on, ``flax/nnx/module.py``."""
    return _PACKAGES.sub("", text)


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


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_LARGE_BYTES = 32 << 20


@functools.cache
def own_the_process() -> None:
    """Use the memory of a process that is moeprof's own, and ends soon, as such a process can.

    The search for circles of objects runs seldom, and not at the end: a command makes a million
    objects, hardly any in a circle, and a tenth of the CPU time that a small profile takes would go
    to looking at them again and again.

    Memory that is freed is kept for what comes next. By default glibc gives every array of a large
    profile back to the system, which must clear its pages for the next array: a third of the time
    that a profile of 1 GB takes. Arrays above 32 MiB are given back still, so the peak stays as it
    is. What the user set of glibc's variables stays.
    """
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")):
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not every libc is glibc
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
