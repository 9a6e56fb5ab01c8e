"""Question: how much is there to gain, in one sentence?"""

from __future__ import annotations

from moeprof.answers.document import Document, headline
from moeprof.answers.values import written


def hints(document: Document) -> str:
    """How many patterns were found, and the largest gain of time."""
    found = headline(document, "hints")
    count, largest = found.get("hints"), found.get("largest_gain")
    if not count:
        return "None of the patterns that were looked for shows in this trace."
    told = f"{written(count, 'count')} pattern{'' if count == 1 else 's'} found"
    return (
        f"{told}; the largest saves at most {written(largest, 'ns')} a step."
        if (largest is not None)
        else f"{told}; what they cost in time is not known."
    )
