"""Question: what is a known pattern, and what does it say of a trace that shows it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moeprof.tables.trace import Trace


@dataclass(frozen=True)
class Hint:
    """A pattern that the trace shows, what it costs, and what to change.

    ``gain_ns`` is the most that the change can save, mean over devices and used steps; the step
    saves less where that time is hidden, or where what replaces it takes time too. None where the
    trace cannot tell. ``gain_bytes`` is the same for the memory of one device. ``source`` says
    where the limit behind the pattern is documented, ``look`` which question has the details.
    """

    evidence: str
    change: str
    look: str
    gain_ns: float | None = None
    gain_bytes: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Pattern:
    """A known reason for a slow or large step, in a file of its own of `analyzers/patterns`.

    Attributes:
        name: that of its file, and what tables and JSON call it.
        title: what is wrong, as a sentence without its full stop.
        place: its place among hints of equal gain.
        find: says what it costs; None where the trace does not show it.
        comes_first: whether nothing is more urgent, whatever it costs.
    """

    name: str
    title: str
    place: int
    find: Callable[[Trace], Hint | None]
    comes_first: bool = False
