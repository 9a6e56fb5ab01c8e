"""Processes that a test starts and that do not outlive it, whatever becomes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def started(command: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with text pipes; killed and its pipes closed at the end.

    A pipe that is left open would be found by the garbage collector in the middle of another test,
    which fails for it.
    """
    process = subprocess.Popen(command, text=True, **settings)
    try:
        yield process
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


@contextlib.contextmanager
def all_started(
    commands: Sequence[Sequence[str]], **settings: Any
) -> Iterator[list[subprocess.Popen[str]]]:
    """Several processes at once, each as by `started`."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(started(command, **settings)) for command in commands]


def kill(pid: int) -> None:
    """End a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
