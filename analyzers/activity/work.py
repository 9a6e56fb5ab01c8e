"""Question: what is a piece of device work, compute, communication or a copy, and how long is each?

The HLO op decides first, as kernels of one collective may have any name (XLA's one-shot kernels,
peer copies); names decide where no op is known, or it is a guess.

How long a kind lasts is how much of each segment, a device during one step, its pieces cover,
however they overlap. All segments are laid end to end on one axis, so that one sort and one running
maximum serve them all: linear after the sort, no loop over events.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from moeprof.analyzers.attribution import is_collective, sure_rows
from moeprof.analyzers.classify.components import COPIES, LOOPS
from moeprof.analyzers.classify.op_kinds import exchange_of
from moeprof.columns.coded import Coded, Flags
from moeprof.columns.table import Column, Given, Table, isin
from moeprof.tables.intervals import is_work
from moeprof.tables.once import once
from moeprof.tables.trace import Trace
from moeprof.vocabulary import COMMUNICATION as KERNELS_OF_COMMUNICATION
from moeprof.vocabulary import is_driver_copy, kind_of_kernel

COMPUTE, COMMUNICATION, COPY, NEITHER = range(4)

SHORT_NS = 10_000
"""A launch costs the host some 5 µs, and the device a few more. Kernels below that are short, and
so are gaps up to it: those have no cause."""

_IN_FLIGHT = r"Async XLA Ops$"
"""Line of a TPU core on which transfers lie from their start to their end."""

_COLLECTIVE_OP = (
    r"^(?:(?:ragged-)?all-to-all|all-gather|all-reduce|reduce-scatter"
    r"|collective-(?:permute|broadcast)|send|recv)(?:-start|-done)?(?:\.\d+)*$"
)
_COPY_OP = r"^copy(?:-start|-done)?(?:\.\d+)*$"
"""XLA names an instruction by its opcode and a number, unless a user or a pass renames it."""


@once
def classes_of_events(trace: Trace) -> np.ndarray:
    """`work_classes` of all events."""
    return work_classes(trace, trace.table("events"))


def work_classes(trace: Trace, events: Given) -> np.ndarray:
    """One of the four classes for each of `events` (rows of `EVENTS`), as int8.

    Communication: the op is a collective, or a custom call that sends or brings back tokens, or
    the kernel is a communication library's. Copies: copies and memory sets, as neither computes.
    Neither: waits for streams and events, and loops whose body was recorded: the body counts.
    An op whose program is missing goes by its name, and is a loop if others lie in it. What a TPU
    has in flight beside its core is communication or else a copy: the core computes.
    """
    events = Table.of(events)
    classes = np.full(len(events), COMPUTE, dtype="int8")
    opcodes, rows = trace.table("hlo_ops")["opcode"], sure_rows(events)
    is_copied = isin(events["kind"], ("copy", "memset")) | events["name"].that(is_driver_copy)
    classes[is_copied | _is_one_of(opcodes, COPIES, rows)] = COPY
    is_unknown = _is_unknown_op(events)
    has_body = events["self_ns"] < events["duration_ns"]
    classes[has_body & is_unknown] = NEITHER
    classes[is_unknown & _is_named(events["op"], _COPY_OP)] = COPY
    classes[_is_named(events["line"], _IN_FLIGHT)] = COPY
    classes[_is_communication(trace, events)] = COMMUNICATION
    classes[has_body & _is_one_of(opcodes, LOOPS, rows)] = NEITHER
    classes[~is_work(events)] = NEITHER
    return classes


def _is_communication(trace: Trace, events: Table) -> Flags:
    targets = trace.table("hlo_ops")["custom_call_target"]
    sends = {target for target in set(targets.tolist()) if exchange_of(target)}
    is_sent = _is_one_of(targets, sends, sure_rows(events))
    is_like_one = _is_unknown_op(events) & _is_named(events["op"], _COLLECTIVE_OP)
    is_kernel = events["name"].that(lambda n: kind_of_kernel(n) in KERNELS_OF_COMMUNICATION)
    found: Flags = is_collective(trace, events) | is_sent | is_kernel | is_like_one
    return found


def _is_unknown_op(events: Table) -> Flags:
    """Whether a piece is an op whose program is missing; a guessed op is none to go by."""
    is_unknown: Flags = (events["instruction"] < 0) & (events["kind"] == "op")
    return is_unknown


def _is_named(names: Coded, pattern: str) -> Flags:
    return names.that(re.compile(pattern).search)


def _is_one_of(texts: Column, wanted: Set[str], rows: np.ndarray) -> Flags:
    """Whether the op in each row of `HLO_OPS` has one of these texts; row -1 has none."""
    return np.append(isin(texts, wanted), False).take(rows)


@dataclass(frozen=True)
class Pieces:
    """Parts of events on the common axis, ordered by start. Arrays of one length."""

    segment: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    work: np.ndarray


@dataclass(frozen=True)
class Spans:
    """Start and end of each segment on its host's clock."""

    start_ns: np.ndarray
    end_ns: np.ndarray


def laid_out(
    spans: Spans, segment: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, work: np.ndarray
) -> Pieces:
    """What of each interval falls into its segment; nothing of it is left where it does not.

    Args:
        spans: the segments.
        segment: int64, index into `spans` of each interval.
        start_ns: int64, on the clock of the segment's host.
        end_ns: int64, the same.
        work: class of each interval.
    """
    start, end = on_one_axis(spans, segment, start_ns, end_ns)
    order = np.argsort(start, kind="stable")
    return Pieces(segment[order], start[order], end[order], work[order])


def on_one_axis(
    spans: Spans, segment: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of what of each interval falls into its segment, segments end to end."""
    first, last = spans.start_ns[segment], spans.end_ns[segment]
    lengths = spans.end_ns - spans.start_ns
    origin = (np.cumsum(lengths) - lengths)[segment] - first
    return np.clip(start_ns, first, last) + origin, np.clip(end_ns, first, last) + origin


def covered_ns(pieces: Pieces, wanted: tuple[int, ...], segments: int) -> np.ndarray:
    """Length of the union of the pieces of the wanted classes, per segment, int64."""
    is_wanted = np.isin(pieces.work, np.array(wanted, dtype=pieces.work.dtype))
    start, end = pieces.start_ns[is_wanted], pieces.end_ns[is_wanted]
    reached = np.maximum.accumulate(np.concatenate([[0], end]))[:-1]
    gain = np.maximum(end - np.maximum(start, reached), 0)
    # float64 sums of whole numbers are exact below 2**53 ns, 104 days
    sums = np.bincount(pieces.segment[is_wanted], weights=gain, minlength=segments)
    return sums.astype("int64")


def shares_of_time(pieces: Pieces, lengths_ns: np.ndarray) -> dict[str, np.ndarray]:
    """Nanoseconds per segment; compute + exposed communication + exposed copies + idle = length.

    Where kinds overlap, compute counts first, then communication, then copies: what is exposed is
    what compute does not hide.
    """
    segments = len(lengths_ns)
    compute = covered_ns(pieces, (COMPUTE,), segments)
    with_communication = covered_ns(pieces, (COMPUTE, COMMUNICATION), segments)
    busy = covered_ns(pieces, (COMPUTE, COMMUNICATION, COPY), segments)
    communication = covered_ns(pieces, (COMMUNICATION,), segments)
    exposed = with_communication - compute
    return {
        "compute_ns": compute,
        "exposed_communication_ns": exposed,
        "exposed_copy_ns": busy - with_communication,
        "idle_ns": lengths_ns - busy,
        "hidden_communication_ns": communication - exposed,
        "copy_ns": covered_ns(pieces, (COPY,), segments),
    }
