"""Question: how much of each segment do intervals cover, however they overlap?

A segment is a device during one step. All segments are laid end to end on one axis, so that one
sort and one running maximum serve them all: linear after the sort, no loop over events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprof.analyzers.activity.work import COMMUNICATION, COMPUTE, COPY


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
