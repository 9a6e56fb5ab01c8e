"""Question: what does a recognised pattern say?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hint:
    """A pattern that the trace shows, what it costs, and what to change.

    ``gain_ns`` is the most that the change can save, mean over devices and used steps; the step
    saves less where that time is hidden, or where what replaces it takes time too. None where the
    trace cannot tell. ``gain_bytes`` is the same for the memory of one device. ``source`` says
    where the limit behind the pattern is documented, ``look`` which finding has the details.
    """

    name: str
    evidence: str
    change: str
    look: str
    gain_ns: float | None = None
    gain_bytes: int | None = None
    source: str = ""
