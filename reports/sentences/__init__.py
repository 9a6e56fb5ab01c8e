"""Question: what did one analysis find, in one sentence?

The sentences stand in a file per group of questions, each a function in the name of its question.
"""

from __future__ import annotations

from collections.abc import Callable

from moeprof.answers.document import Document, MetricInfo
from moeprof.answers.story import count_of, metric_name
from moeprof.answers.values import NONE, written
from moeprof.reports.parts.phrases import withheld_by
from moeprof.reports.sentences.of_communication import collectives, dispatch_combine, stragglers
from moeprof.reports.sentences.of_devices import launch, pipeline, roofline, sync_gaps
from moeprof.reports.sentences.of_experts import expert_load, grouped_gemm
from moeprof.reports.sentences.of_hints import hints
from moeprof.reports.sentences.of_memory import memory, receive_buffers
from moeprof.reports.sentences.of_time import breakdown, ops, step_time, timeline

SENTENCES: dict[str, Callable[[Document], str]] = {
    "step_time": step_time,
    "breakdown": breakdown,
    "timeline": timeline,
    "ops": ops,
    "dispatch_combine": dispatch_combine,
    "collectives": collectives,
    "stragglers": stragglers,
    "expert_load": expert_load,
    "grouped_gemm": grouped_gemm,
    "memory": memory,
    "receive_buffers": receive_buffers,
    "roofline": roofline,
    "sync_gaps": sync_gaps,
    "launch": launch,
    "pipeline": pipeline,
    "hints": hints,
}
"""The sentence of each question. What has none here is told by its headline figures."""


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


def described_metric(metric: MetricInfo) -> str:
    """``name value``, with the unit."""
    return f"{metric_name(metric)} {written(metric['value'], metric['unit'])}"
