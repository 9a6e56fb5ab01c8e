"""Question: what does a run answer, a sentence per question, and which of several is fastest?"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.analyzers.registry import is_question, question
from moeprof.answers.document import Document, MetricInfo
from moeprof.answers.names import printable
from moeprof.answers.story import count_of, metric_name, run_labels, step_time
from moeprof.answers.values import NONE, written
from moeprof.reports.parts.phrases import withheld_by
from moeprof.units import format_ns

_NOT_KNOWN = "Not known: the notes say why."


def sentence(document: Document, name: str) -> str:
    """What the answer to one question says, in one sentence."""
    finding = document["analyses"][name]
    if failed := withheld_by(document, name):
        return f"Withheld: {' and '.join(failed)} failed, so no figure of it can be trusted."
    status = finding.get("status", "ok")
    if status == "none":
        return NONE
    if status == "not_known":
        return _NOT_KNOWN
    say = question(name).sentence if is_question(name) else None
    if say:
        return say(document) or NONE
    if finding["headline"]:
        return f"{' · '.join(map(described_metric, finding['headline']))}."
    return count_of(len(finding["rows"])) if finding["rows"] else NONE


def told_by_figures(document: Document, name: str) -> bool:
    """Whether headline figures stand beside the sentence: else they are it, or there are none."""
    has_sentence = is_question(name) and question(name).sentence is not None
    return has_sentence and document["analyses"][name].get("status", "ok") != "none"


def reason(document: Document, name: str) -> str:
    """Why there is nothing to answer with, as a sentence; empty where something is."""
    why = document["analyses"][name].get("why", "")
    return printable(f"{why[:1].upper()}{why[1:]}.") if why else ""


def described_metric(metric: MetricInfo) -> str:
    """``name value``, with the unit."""
    return f"{metric_name(metric)} {written(metric['value'], metric['unit'])}"


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
