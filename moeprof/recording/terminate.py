"""Question: how is a recording saved when SIGTERM arrives inside the window?

Python's default is to die at once. While a window is open, and only then, a handler saves it and
lets the process die by the same signal. A handler of the script's own is left alone, and so is
the one that JAX installs in multi-process runs to announce preemption.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import jax


def save_on_terminate(save: Callable[[], None]) -> Callable[[], None]:
    """Call `save` before the process dies of SIGTERM; returns how to undo that."""
    is_main = threading.current_thread() is threading.main_thread()
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_main or not is_default or jax.process_count() > 1:
        return lambda: None

    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            save()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, handle)

    def undo() -> None:
        is_ours = signal.getsignal(signal.SIGTERM) is handle
        if is_ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return undo
