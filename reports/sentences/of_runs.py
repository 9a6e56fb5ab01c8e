"""Question: which of several runs is the fastest, in one sentence?"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.answers.document import Document
from moeprof.answers.story import run_labels, step_time
from moeprof.units import format_ns


def comparison_sentence(documents: Sequence[Document]) -> str:
    """Which of several runs has the shortest step, and by how much; empty where it has no rival."""
    times = [
        (time.median_ns, name)
        for document, name in zip(documents, run_labels(documents), strict=True)
        if (time := step_time(document))
    ]
    if len(times) < 2:
        return ""
    (least_ns, best), (most_ns, worst) = min(times), max(times)
    if least_ns == most_ns:
        return f"All {len(times)} runs take the same time per step: {format_ns(least_ns)}."
    return (
        f"{best} has the shortest step: {format_ns(least_ns)}, "
        f"{most_ns / least_ns:.2f} times as fast as {worst} ({format_ns(most_ns)})."
        f"{_not_told_apart(documents)}"
    )


def _not_told_apart(documents: Sequence[Document]) -> str:
    """Names the runs whose steps overlap with those of the run that has the shortest one."""
    named = zip(run_labels(documents), map(step_time, documents), strict=True)
    known = sorted(
        ((name, time) for name, time in named if time), key=lambda pair: pair[1].median_ns
    )
    (_, first), *others = known
    close = [name for name, time in others if time.least_ns <= first.most_ns]
    if not close:
        return ""
    return f" Steps of {', '.join(close)} overlap with its steps: measure more to tell them apart."
