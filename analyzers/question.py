"""Question: what is a question that moeprof answers, a drawing beside one, a pattern it knows?

Each is one object in a file of its own: `QUESTION` in `analyzers/questions/<name>.py`, `DRAWING` in
`analyzers/drawings/<name>.py`, `PATTERN` in `analyzers/patterns/<name>.py`. Every list of them is
made of these files (`moeprof.analyzers.registry`): none is kept by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from moeprof.tables.analysis import Analysis
from moeprof.tables.law import Law, Need
from moeprof.tables.schema import Schema
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    from moeprof.answers.bars import Figure
    from moeprof.answers.document import Document


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


class Group(Enum):
    """Questions that belong together, in the order in which they are answered and listed."""

    TIME = "Time"
    COMMUNICATION = "Communication"
    EXPERTS = "Experts"
    MEMORY = "Memory"
    DEVICES = "Devices"
    FINDINGS = "Findings"

    @property
    def place(self) -> int:
        """Where it stands among the groups."""
        return list(Group).index(self)


@dataclass(frozen=True)
class Taken:
    """Figures of an answer that need more than the rest of it does, and fall alone.

    They come out of the answer to another ``question`` and fall with it, or ``needs`` say what they
    need besides: a law that breaks any of these withholds them.
    """

    figures: tuple[str, ...]
    question: str = ""
    needs: frozenset[Need] = frozenset()

    def falls_with(self, law: Law) -> bool:
        """Whether a law withholds them."""
        return self.question in law.withholds or not self.needs.isdisjoint(law.breaks)


@dataclass(frozen=True)
class Picture:
    """A picture of an answer: what draws it from a document, or finds nothing to draw.

    ``caption`` says what it shows, ``caption: how to read it``; empty where the answer does.
    """

    caption: str
    draw: Callable[[Document], Figure | None]


@dataclass(frozen=True)
class Question:
    """One question about a run.

    Attributes:
        title: its heading, in the field's words.
        group: what it is listed under; ``place`` is its place there.
        asks: the question itself, one sentence.
        needs: what the record must carry for its figures to be right. A law that fails withholds
            every question whose need it breaks.
        schema: the table of its answer. Its name is the question's: that of its file, of
            ``--only`` and of the key in JSON.
        run: answers it.
        sentence: says the answer in one sentence, from a document that has it; empty where its
            figures are not there.
        figures: what its section of a page shows, the first as the answer itself.
        first: columns of the table that are read first.
        on_first_screen: headline figures that stand on the first screen already.
        holds_all_work: whether its table has a row wherever devices worked.
        good_laws: laws whose good verdict is worth telling beside the answer, too.
        taken: figures that fall with those of another question, or with a need of their own.
    """

    title: str
    group: Group
    place: int
    asks: str
    needs: frozenset[Need]
    schema: Schema
    run: Callable[[Trace], Analysis]
    sentence: Callable[[Document], str] | None = None
    figures: tuple[Picture, ...] = ()
    first: tuple[str, ...] = ()
    on_first_screen: tuple[str, ...] = ()
    holds_all_work: bool = False
    good_laws: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()

    @property
    def name(self) -> str:
        """What `--only`, JSON and `Run.ask` call it."""
        return self.schema.name


@dataclass(frozen=True)
class Drawing:
    """An answer that is a picture, with more rows than anyone reads, beside that to ``beside``.

    It needs what that question needs, and is withheld with it.
    """

    beside: str
    place: int
    asks: str
    schema: Schema
    run: Callable[[Trace], Analysis]

    @property
    def name(self) -> str:
        """What `--only`, JSON and `Run.ask` call it."""
        return self.schema.name
