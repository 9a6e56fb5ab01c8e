"""Question: where does the time of a step go, in one sentence per question?"""

from __future__ import annotations

from moeprof.answers.document import Document, headline, rows
from moeprof.answers.names import shortened
from moeprof.answers.story import (
    NAME_WIDTH,
    described_interval_parts,
    described_outside,
    described_parts,
    described_step,
    label,
    parts,
)
from moeprof.answers.values import NONE, written
from moeprof.units import format_ns, format_percent


def step_time(document: Document) -> str:
    """The mean interval and its parts, the device work of a step, and what lies outside of all."""
    told = [f"Time per step: {described_step(document)}."]
    if parts_of_it := described_interval_parts(document):
        told.append(f"From start to start: {parts_of_it}.")
    if outside := described_outside(document):
        told.append(f"O{outside[1:]}.")
    return " ".join(told)


def breakdown(document: Document) -> str:
    """The largest component."""
    found = parts(document)
    if not found:
        return NONE
    name = shortened(label(found[0].component), NAME_WIDTH)
    return (
        f"Largest part: {name}, {format_percent(found[0].share)} "
        f"({format_ns(found[0].duration_ns)}) {described_parts(document)}."
    )


def timeline(document: Document) -> str:
    """What devices do with the step."""
    found = headline(document, "timeline")
    if found.get("compute_share") is None:
        return NONE
    share = {name: written(value, "share") for name, value in found.items()}
    return (
        f"Of the step, devices compute {share['compute_share']}, communicate without computing "
        f"{share['exposed_communication_share']}, copy {share['exposed_copy_share']} and idle "
        f"{share['idle_share']}."
    )


def ops(document: Document) -> str:
    """The costliest operation."""
    found = rows(document, "ops")
    if not found:
        return NONE
    first = found[0]
    name = shortened(written(first["op"], ""), NAME_WIDTH) or "work without a name"
    return (
        f"Costliest: {name} ({label(str(first['component']))}, {written(first['phase'], '')}), "
        f"{written(first['share'], 'share')} of op time ({written(first['per_step_ns'], 'ns')})."
    )
