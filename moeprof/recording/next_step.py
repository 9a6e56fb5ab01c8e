"""When the host began the step after a window: the end of the last recorded interval, as it saw it.

It is a stamp of the host, taken as the script reaches the step, less the time for which closing the
window held the script up. Device work begins later and, with asynchronous dispatch, while other
steps still run: it stands in the record and is never put beside stamps of a device.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

FACT = "next_step_start_ns"
"""Key in a window's facts: ns since 1970, on the host's clock."""


class NextStep:
    """Waits for the first step that begins after a window that closed at a step's end."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._facts: dict[str, Any] | None = None
        self._key: Hashable = None
        self._held_up_ns = 0

    def expect(self, facts: dict[str, Any], key: Hashable, held_up_ns: int) -> None:
        """The window of `facts` was closed, which took so long; steps are those of `key`."""
        self._facts, self._key, self._held_up_ns = facts, key, held_up_ns

    def begins(self, key: Hashable, at_ns: int) -> bool:
        """Whether the step of `key` that begins is the expected one, which is then noted."""
        if self._facts is None or key != self._key:
            return False
        self._facts[FACT] = at_ns - self._held_up_ns
        self._facts = None
        return True
