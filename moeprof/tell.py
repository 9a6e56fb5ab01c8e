"""Question: how does long work say how far it is, without knowing who listens?"""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[int, int], None]
"""Called with what is done and with how much there is, in pieces of work that were really counted;
from any thread."""


def unheard(done: int, of: int) -> None:
    """Nobody listens."""
