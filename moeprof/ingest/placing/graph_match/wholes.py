"""Question: which part of a graph is a launch that lacks some of its kernels?

The capture begins or ends amid a launch, or the profiler drops kernels. What is left is matched
as the same kernels of a whole launch are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.launches import NO_LABEL
from moeprof.ingest.placing.graph_match.solve import Answer

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Whole:
    names: Ints
    answer: Answer
    place_of: dict[tuple[int, int], int]


@dataclass
class Wholes:
    """The matched launches by label, largest first. Grows as launches are matched."""

    _known: dict[int, list[_Whole]] = field(default_factory=dict)

    def keep(self, label: int, nodes: Ints, names: Ints, answer: Answer) -> None:
        """Remember a launch that was matched, by its label, nodes and kernel names."""
        pairs = zip(nodes.tolist(), names.tolist(), strict=True)
        places = {pair: place for place, pair in enumerate(pairs) if pair[0] >= 0}
        self._known.setdefault(label, []).append(_Whole(names, answer, places))

    def part(self, label: int, nodes: Ints, names: Ints) -> Answer | None:
        """The answer of the same kernels in a larger launch of the label; None if in none."""
        if label == NO_LABEL:
            return None
        for whole in self._known.get(label, []):
            places = _places(whole, nodes, names)
            if places is not None:
                return whole.answer.of(places)
        return None


def _places(whole: _Whole, nodes: Ints, names: Ints) -> Ints | None:
    """Places in the whole by node and name, or without nodes where the names stand in a row."""
    if (nodes >= 0).all():
        pairs = zip(nodes.tolist(), names.tolist(), strict=True)
        found = [whole.place_of.get(pair, -1) for pair in pairs]
        return np.array(found, np.int64) if min(found) >= 0 else None
    length = len(names)
    if length > len(whole.names):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(whole.names, length)
    starts = np.flatnonzero((windows == names).all(axis=1))
    return np.arange(starts[0], starts[0] + length) if len(starts) == 1 else None
