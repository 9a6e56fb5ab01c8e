"""Question: how do several runs look beside each other?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeprof.analyzers.questions.breakdown import phase_bars, phase_keys, phases
from moeprof.answers import story
from moeprof.answers.bars import Figure, horizontal
from moeprof.answers.colours import in_order
from moeprof.answers.document import Document


def comparison(documents: Sequence[Document]) -> Figure | None:
    """One bar per run: its phases one after the other, each by component; milliseconds."""
    runs = [story.phase_totals(document) for document in documents]
    components = in_order(component for run in runs for component, _phase in run)
    found = phases(key for run in runs for key in run)
    bars = [
        phase_bars(component, phase, durations_ns)
        for phase in found
        for component in components
        if (durations_ns := _by_place(runs, (component, phase)))
    ]
    if not bars:
        return None
    return horizontal(
        [*bars, *phase_keys(found)], story.run_labels(documents), f"ms {story.basis(*documents)}"
    )


def _by_place(
    runs: Sequence[Mapping[tuple[str, str], float]], key: tuple[str, str]
) -> dict[int, float]:
    return {place: run[key] for place, run in enumerate(runs) if key in run}
