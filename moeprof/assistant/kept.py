"""Question: which runs are open between the calls of an assistant, and when are they freed?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moeprof.assistant.place import Place, place_of
from moeprof.session.comparison import Comparison
from moeprof.session.run import Run, load

if TYPE_CHECKING:
    from moeprof.answers.document import Document

MOST_OPEN = 2
"""Runs that are kept open: a comparison needs two."""


class OpenRun:
    """A run, and what it has answered."""

    def __init__(self, run: Run) -> None:
        """Nothing is answered before it is asked."""
        self.run = run
        self._documents: dict[tuple[str, ...], Document] = {}

    def document(self, *only: str) -> Document:
        """The answers to these questions, by default to all, computed once."""
        if only not in self._documents:
            self._documents[only] = self.run.document(only)
        return self._documents[only]


class OpenRuns:
    """The runs that were asked last. One that has changed on disk is read again."""

    def __init__(self, root: Path) -> None:
        """`root` is free of links; nothing outside of it is opened."""
        self.root = root
        self._open: OrderedDict[Place, OpenRun] = OrderedDict()
        self._compared: tuple[tuple[Place, Place], Comparison] | None = None

    def run(self, given: str) -> OpenRun:
        """The run at a path.

        Raises:
            SelectionError: it is not there, or outside of the root.
            TraceError: it cannot be read.
        """
        return self._run(place_of(self.root, given), ())

    def comparison(self, base: str, new: str) -> Comparison:
        """Two runs, compared.

        Raises:
            SelectionError: one of them is not there, or outside of the root.
            TraceError: one of them cannot be read.
        """
        places = (place_of(self.root, base), place_of(self.root, new))
        first = self._run(places[0], places)
        second = self._run(places[1], places)
        if self._compared is None or self._compared[0] != places:
            self._compared = None  # freed before the next is computed
            self._compared = (places, Comparison(first.run, second.run))
        return self._compared[1]

    def _run(self, place: Place, needed: Sequence[Place]) -> OpenRun:
        if place not in self._open:
            self._make_room(place, needed)
            self._open[place] = OpenRun(load(place.path))
        self._open.move_to_end(place)
        return self._open[place]

    def _make_room(self, place: Place, needed: Sequence[Place]) -> None:
        """Free what was read of this run before it changed, then the runs asked longest ago."""
        old = [each for each in self._open if each.path == place.path]
        others = [each for each in self._open if each not in old and each not in needed]
        more = len(self._open) - len(old) - (MOST_OPEN - 1)
        for each in [*old, *others[: max(more, 0)]]:
            del self._open[each]
            if self._compared is not None and each in self._compared[0]:
                self._compared = None
