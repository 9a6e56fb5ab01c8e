"""Question: in how many places was an XSpace damaged, and where are the first of them?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from moeprof.ingest.xspace.space import Damage, SpaceHead
from moeprof.ingest.xspace.wire import WireError

MOST_LISTED = 64
"""Places that are listed; those beyond are only counted."""


class Places:
    """Damaged places in the order they are met: all counted, the first ones kept."""

    def __init__(self) -> None:
        """No damage yet."""
        self.count = 0
        self.first: list[Damage] = []

    def add(self, position: int, reason: str) -> None:
        """Note one place."""
        self.count += 1
        if len(self.first) < MOST_LISTED:
            self.first.append(Damage(position, reason))

    def extend(self, count: int, first: Iterable[Damage]) -> None:
        """Note `count` more places, `first` among them."""
        self.count += count
        self.first.extend(islice(first, MOST_LISTED - len(self.first)))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """End the block at bytes that are no protobuf, and note where they are."""
        try:
            yield
        except WireError as error:
            self.add(error.position, error.reason)


class DamageLog:
    """Adds places to a `SpaceHead`. A part of the file that is read again counts once."""

    def __init__(self, head: SpaceHead) -> None:
        """Places go into `head`."""
        self._head = head
        self._counts: dict[Hashable, int] = {}

    def add(self, part: Hashable, count: int, first: Iterable[Damage]) -> None:
        """Note that `count` places of a part of the file are damaged, `first` among them.

        A second reading of a part may look closer (more stats) and meet more: the largest count is
        the part's.
        """
        grown = count - self._counts.get(part, 0)
        if grown > 0:
            self._counts[part] = count
            self._head.damaged_places += grown
        for place in first:
            if len(self._head.damage) < MOST_LISTED and place not in self._head.damage:
                self._head.damage.append(place)
