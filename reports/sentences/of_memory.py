"""Question: what fills a device, in one sentence per question?"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.answers.document import Document, Value, headline, rows
from moeprof.answers.names import shortened
from moeprof.answers.story import NAME_WIDTH
from moeprof.answers.values import NONE, written
from moeprof.units import format_percent


def memory(document: Document) -> str:
    """What the step's program needs at its peak, and what the allocator measured."""
    found = headline(document, "memory")
    peak, measured = found.get("program_peak"), found.get("allocator_peak")
    told = []
    if peak is not None:
        told.append(
            f"The step's program needs {written(peak, 'bytes')} of a device at its peak: "
            f"{written(found['argument'], 'bytes')} of arguments and up to "
            f"{written(found['temp'], 'bytes')} that it holds while it runs."
        )
    if found.get("host_memory"):
        told.append(f"{written(found['host_memory'], 'bytes')} more lie in the host's memory.")
    if measured is not None:
        told.append(f"The allocator measured {written(measured, 'bytes')} at most.")
    return " ".join(told) or "Not known: the notes say why."


def receive_buffers(document: Document) -> str:
    """The largest buffer, and how much of it tokens used."""
    found = rows(document, "receive_buffers")
    if not found:
        return NONE
    first = found[0]
    worst, used = first["worst_bytes"], first["used_bytes"]
    share = "use not known"
    if isinstance(used, int | float) and isinstance(worst, int | float) and worst:
        share = f"{format_percent(used / worst)} of it used"
    return f"Largest: {buffer_name(first)}, {written(worst, 'bytes')}, {share}."


def buffer_name(row: Mapping[str, Value], width: int = NAME_WIDTH) -> str:
    """``all-to-all.7 (dispatch, forward)``: the op, cut to `width`, says little alone."""
    name = shortened(written(row["op"], ""), width) or "(no name)"
    return f"{name} ({written(row['role'], '')}, {written(row['phase'], '')})"
