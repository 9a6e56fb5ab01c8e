"""Question: how does a person at a terminal see what a command is busy with?

A line on stderr, from one second on, that is gone when the work is done. Where stderr is no
terminal, or one that cannot take a line back, there is nothing, and rich is not even imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from moeprof.tell import Tell

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_QUIET_S = 1.0
"""What takes less needs no line."""
_BAR_WIDTH = 24


class Work:
    """What a command is busy with: a phase, and how much of it is done where that can be counted.

    Its methods may be called from any thread, and cost next to nothing.
    """

    def __init__(self, phase: str) -> None:
        """`phase` is the first; nothing is drawn before `show`."""
        self._now: tuple[str, int, int | None] = (phase, 0, None)
        self._since_s = time.monotonic()
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._is_over = False

    def phase(self, name: str) -> None:
        """From now on it is busy with `name`, and nobody knows how much there is of it."""
        self._now = (name, 0, None)

    def counting(self, name: str) -> Tell:
        """From now on it is busy with `name`; what is returned says how much of it is done."""
        self.phase(name)

        def tell(done: int, of: int) -> None:
            self._now = (name, done, of if of > 1 else None)  # one piece is nothing to count

        return tell

    def show(self) -> None:
        """Draw the line from now on, unless the work is over."""
        from rich.console import Console, RenderableType
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        spinner = Spinner("dots")

        def line() -> Table:
            phase, done, of = self._now
            elapsed = Text(f"{time.monotonic() - self._since_s:.0f} s", style="dim")
            cells: list[RenderableType] = [
                spinner,
                Text(phase, no_wrap=True, overflow="ellipsis"),
                elapsed,
            ]
            if of is not None:
                bar = ProgressBar(of, done, width=_BAR_WIDTH, complete_style="cyan")
                cells[2:2] = [bar, Text(f"{done:,} of {of:,}")]
            grid = Table.grid(padding=(0, 1))
            grid.add_row(*cells)
            return grid

        live = Live(
            get_renderable=line,
            console=Console(stderr=True),
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with self._lock:
            if not self._is_over:
                self._live = live
                live.start()

    def end(self) -> None:
        """Take the line away; no other comes."""
        with self._lock:
            self._is_over = True
            if self._live is not None:
                self._live.stop()


@contextlib.contextmanager
def working(phase: str) -> Iterator[Work]:
    """Inside is work that may take more than a second; what is printed belongs outside."""
    work = Work(phase)
    if not _is_watched():
        yield work
        return
    timer = threading.Timer(_QUIET_S, work.show)
    timer.daemon = True
    timer.start()
    try:
        yield work
    finally:
        timer.cancel()
        work.end()
        timer.join()


def _is_watched() -> bool:
    """Whether stderr is a terminal that can take a line back."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
