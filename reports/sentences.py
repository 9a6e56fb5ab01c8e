"""Question: what did one analysis, or a comparison of runs, find, in one sentence?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from moeprof.reports.document import Document, MetricInfo, Value
from moeprof.reports.names import shortened
from moeprof.reports.story import (
    NAME_WIDTH,
    basis,
    count_of,
    described_parts,
    described_step,
    headline,
    label,
    metric_name,
    parts,
    rows,
    run_labels,
    step_time,
    withheld_by,
)
from moeprof.reports.values import written
from moeprof.units import format_ns, format_percent

NONE = "None in this trace."


def sentence(document: Document, name: str) -> str:
    """What one analysis found, in one sentence."""
    finding = document["analyses"][name]
    if failed := withheld_by(document, name):
        return f"Withheld: {' and '.join(failed)} failed, so no figure of it can be trusted."
    if name in SENTENCES:
        return SENTENCES[name](document)
    if finding["headline"]:
        return f"{' · '.join(map(described_metric, finding['headline']))}."
    return count_of(len(finding["rows"])) if finding["rows"] else NONE


def _step_sentence(document: Document) -> str:
    return f"Time per step: {described_step(document)}."


def _breakdown_sentence(document: Document) -> str:
    found = parts(document)
    if not found:
        return NONE
    name = shortened(label(found[0].component), NAME_WIDTH)
    return (
        f"Largest part: {name}, {format_percent(found[0].share)} "
        f"({format_ns(found[0].duration_ns)}) {described_parts(document)}."
    )


def _ops_sentence(document: Document) -> str:
    found = rows(document, "ops")
    if not found:
        return NONE
    first = found[0]
    name = shortened(written(first["op"], ""), NAME_WIDTH) or "work without a name"
    return (
        f"Costliest: {name} ({label(str(first['component']))}, {written(first['phase'], '')}), "
        f"{written(first['share'], 'share')} of op time ({written(first['per_step_ns'], 'ns')})."
    )


def _buffers_sentence(document: Document) -> str:
    found = rows(document, "receive_buffers")
    if not found:
        return NONE
    first = found[0]
    worst, used = first["worst_bytes"], first["used_bytes"]
    share = "use not recorded"
    if isinstance(used, int | float) and isinstance(worst, int | float) and worst:
        share = f"{format_percent(used / worst)} of it used"
    return f"Largest: {buffer_name(first)}, {written(worst, 'bytes')}, {share}."


def buffer_name(row: Mapping[str, Value], width: int = NAME_WIDTH) -> str:
    """``all-to-all.7 (dispatch, forward)``: the op, cut to `width`, says little alone."""
    name = shortened(written(row["op"], ""), width) or "(no name)"
    return f"{name} ({written(row['role'], '')}, {written(row['phase'], '')})"


def _timeline_sentence(document: Document) -> str:
    found = headline(document, "timeline")
    if found.get("compute_share") is None:
        return NONE
    share = {name: written(value, "share") for name, value in found.items()}
    return (
        f"Of the step, devices compute {share['compute_share']}, communicate without computing "
        f"{share['exposed_communication_share']}, copy {share['exposed_copy_share']} and idle "
        f"{share['idle_share']}."
    )


def _collectives_sentence(document: Document) -> str:
    found = headline(document, "collectives")
    if not found.get("call_sites"):
        return NONE
    waiting = written(found["collective_wait_share"], "share")
    return (
        f"Collectives take {written(found['collective_time'], 'ns')} {basis(document)}, waiting "
        f"for the last device: {waiting}. Conspicuous: {found['conspicuous_call_sites']} of "
        f"{found['call_sites']} call sites."
    )


def _stragglers_sentence(document: Document) -> str:
    found = headline(document, "stragglers")
    if not found:
        has_any = bool(headline(document, "collectives").get("call_sites", 1))
        return "Not known: the notes say why." if has_any else NONE
    who = written(found["straggler"], "")
    if not who.startswith("rank"):
        return f"{who.capitalize()}."
    share, time = written(found["waited_for_share"], "share"), written(found["waited_for"], "ns")
    return f"{who.capitalize()}: others wait {share} of the step for it ({time})."


def _pipeline_sentence(document: Document) -> str:
    found = headline(document, "pipeline")
    if not found:
        return NONE
    return (
        f"Stages wait {written(found['bubble_share'], 'share')} of the time; the schedule "
        f"({written(found['schedule'], '')}, {found['stages']} stages) demands "
        f"{written(found['schedule_share'], 'share')}."
    )


SENTENCES: dict[str, Callable[[Document], str]] = {
    "step_time": _step_sentence,
    "breakdown": _breakdown_sentence,
    "ops": _ops_sentence,
    "receive_buffers": _buffers_sentence,
    "timeline": _timeline_sentence,
    "collectives": _collectives_sentence,
    "stragglers": _stragglers_sentence,
    "pipeline": _pipeline_sentence,
}
"""The analyses that have a sentence of their own; the others are told by their headline figures."""


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


def described_metric(metric: MetricInfo) -> str:
    """``name value``, with the unit."""
    return f"{metric_name(metric)} {written(metric['value'], metric['unit'])}"
