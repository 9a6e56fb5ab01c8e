"""Question: what must hold before a figure is shown, and which figures fall with it?

A law compares what was expected with what was found: launches with kernels, the parts of a step
with its length. Laws of the input are judged where the input is read (`moeprof.ingest.trust`), laws
of the answer beside the questions (`moeprof.analyzers.laws`). All laws together are the trust
record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Verdict = Literal["ok", "warn", "fail", "unchecked"]
"""Unchecked: the data that the law compares is not there, so it neither holds nor is broken."""

Figure = float | int | str | None


class Need(StrEnum):
    """What a record must carry for the figures of a question to be right."""

    DEVICE_TIMES = "times of device work"
    PIECE_TIMES = "lengths of single kernels and copies"
    DEVICE_CLOCKS = "devices of a host on one clock"
    EVERY_DEVICE = "every device of the run, with its rank"
    HOST_RECORD = "launches and calls of the host, whole"
    WHOLE_STEPS = "all work of a step, inside of it"
    INTERVALS = "the time from one step to the next, in parts"
    COMPONENTS = "op time that components add up to"
    NESTING = "which ops run inside of others, and which wait"
    PROGRAMS = "compiled programs, with their buffers"
    PROGRAMS_THAT_RAN = "which of the programs ran"
    ROUTING = "recorded routing"
    RECEIVED = "recorded counts of rows that ranks received"


@dataclass(frozen=True)
class Scope:
    """Figures of one question that are withheld: only those that match all that is given.

    ``figures`` are metrics of the headline and columns of the table; empty for all of them. Rows
    are chosen by their columns ``host``, ``device``, ``step`` and ``op``; "" and -1 stand for any.
    Metrics of the headline fall only where no row is chosen: they are then about the whole. With
    ``need`` in the place of a question it is about every question that has this need; the trust
    record names each of them.
    """

    question: str = ""
    figures: tuple[str, ...] = ()
    host: str = ""
    device: int = -1
    step: int = -1
    op: str = ""
    need: Need | None = None

    @property
    def chooses_rows(self) -> bool:
        """Whether it is about some rows alone."""
        return bool(self.host or self.op) or self.device != -1 or self.step != -1


@dataclass(frozen=True)
class Law:
    """One comparison that was made before any figure was taken from a profile.

    ``expected`` and ``found`` are what was compared, in ``unit``; None where the law compares no
    figures. ``breaks`` is what the fault takes away: no figure is shown of a question that needs
    any of it. ``scopes`` are the parts of others that it falsifies. Only a law that failed or warns
    has any. ``withholds`` names the questions that fall: those who judge do not know them, the
    trust record adds them (`moeprof.analyzers.laws`).
    """

    check: str
    verdict: Verdict
    detail: str
    breaks: tuple[Need, ...] = ()
    expected: Figure = None
    found: Figure = None
    unit: str = ""
    scopes: tuple[Scope, ...] = ()
    withholds: tuple[str, ...] = ()

    def withholds_figures(self, question: str, figures: tuple[str, ...] = ()) -> bool:
        """Whether it withholds one of these figures of a question whole, without `figures` any.

        A figure of which some rows alone are withheld is not. As long as no question is named, what
        breaks a need may withhold each of them.
        """
        if self.breaks and not self.withholds:
            return True
        return question in self.withholds or any(
            (scope.need is not None or scope.question == question)
            and not scope.chooses_rows
            and not (figures and scope.figures and set(figures).isdisjoint(scope.figures))
            for scope in self.scopes
        )

    @property
    def withholds_any(self) -> bool:
        """Whether any figure is not shown because of it."""
        return bool(self.breaks or self.withholds or self.scopes)
