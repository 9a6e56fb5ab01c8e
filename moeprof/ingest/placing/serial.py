"""Question: which recorded durations are impossible, and how long can those pieces have run?

A stream of a GPU is serial. A piece that ends after the one behind it on the same stream, which
began later and is of another launch, cannot have run that long: its recorded end is wrong. It is
cut where the next launch begins. Left as they are:

- overlaps that the next piece outlasts: with programmatic dependent launch a kernel may begin
  while the one before it drains;
- pieces of one launch: nodes of a graph may run at once and are reported on one stream;
- CPU threads and derived lines (kind op): they are not serial;
- a line on which this happens all the time: it is not serial, whatever it is called.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from moeprof.ingest.planes.record import Labels
from moeprof.ingest.xspace.space import Flags, Int64s

SERIAL_KINDS = ("kernel", "copy", "memset")
MOST_SHARE = 0.05
"""A line with a larger share of such pieces, and more than `FEW` of them, is not serial."""
FEW = 3


class Repaired(NamedTuple):
    """Work with ``recorded_ns`` and its impossible ends cut, and the lines left alone."""

    work: pd.DataFrame
    not_serial: tuple[str, ...]


def repaired(work: pd.DataFrame, labels: Labels) -> Repaired:
    """Cut the impossible ends in `work`, which has `record.COLUMNS` and is in order of start.

    ``recorded_ns`` is the length as recorded, before repair. Stamps in ns.
    """
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    whole = work.assign(recorded_ns=ends - starts)
    order, line = _by_line(work, labels)
    if not _any_outlives(line, ends[order]):
        return Repaired(whole, ())
    bound = _next_launch_ns(line, _launches(work, order), starts[order])
    is_wrong = _outlive_a_later_one(line, bound, starts[order], ends[order])
    is_wrong, loose = _on_serial_lines(line, is_wrong)
    cut_ns = ends.copy()
    cut_ns[order[is_wrong]] = bound[is_wrong]
    texts = labels.texts
    named = dict.fromkeys(texts[code] for code in work["line"].to_numpy()[order[loose]].tolist())
    return Repaired(whole.assign(end_ns=cut_ns), tuple(named))


def _by_line(work: pd.DataFrame, labels: Labels) -> tuple[Int64s, Int64s]:
    """Places of the pieces that take time on streams, by line, then start; numbers of the lines."""
    kinds = [labels.code(kind) for kind in SERIAL_KINDS]
    is_serial = np.zeros(len(labels.texts), bool)
    is_serial[kinds] = True
    takes_time = work["end_ns"].to_numpy() > work["start_ns"].to_numpy()
    places = np.flatnonzero(is_serial[work["kind"].to_numpy()] & takes_time)
    device, line = work["device"].to_numpy()[places], work["line"].to_numpy()[places]
    number = pd.factorize(device * len(labels.texts) + line)[0]
    # numpy sorts 16 bits by radix, many times as fast as 64
    is_small = number.max(initial=0) < np.iinfo(np.int16).max
    order = np.argsort(number.astype(np.int16) if is_small else number, kind="stable")
    return places[order], number[order]


def _any_outlives(line: Int64s, ends: Int64s) -> bool:
    """Whether any piece ends after the next one of its line: seldom, and cheap to rule out."""
    return bool(((ends[1:] < ends[:-1]) & (line[1:] == line[:-1])).any())


def _launches(work: pd.DataFrame, order: Int64s) -> Int64s:
    """What tells launches apart: the correlation id; a piece without one is its own launch."""
    ids = work["correlation_id"].to_numpy()[order]
    return np.where(ids >= 0, ids, -2 - np.arange(len(order)))


def _next_launch_ns(line: Int64s, launch: Int64s, starts: Int64s) -> Int64s:
    """Start of the first piece behind each that is of another launch; -1 where none is."""
    if not len(line):
        return np.zeros(0, np.int64)
    is_other = (launch[1:] != launch[:-1]) | (line[1:] != line[:-1])
    firsts = np.append(np.flatnonzero(is_other) + 1, len(line))
    place = firsts[np.searchsorted(firsts, np.arange(len(line)), "right")]
    at = np.minimum(place, len(line) - 1)
    return np.where((place < len(line)) & (line[at] == line), starts[at], -1)


def _outlive_a_later_one(line: Int64s, bound: Int64s, starts: Int64s, ends: Int64s) -> Flags:
    """Whether a piece ends after one that begins at or behind its bound, on the same line."""
    if not len(line):
        return np.zeros(0, bool)
    low, span = int(starts.min()), int(ends.max()) - int(starts.min()) + 1
    keyed = ends - low + line * span
    soonest = np.minimum.accumulate(keyed[::-1])[::-1]
    order = np.searchsorted(line * span + (starts - low), line * span + (bound - low), "left")
    at = np.minimum(order, len(line) - 1)
    later = soonest[at] - line * span + low
    return (bound > starts) & (ends > later)


def _on_serial_lines(line: Int64s, is_wrong: Flags) -> tuple[Flags, Int64s]:
    """The flags without those of lines that are not serial, and a place on each such line."""
    if not len(line):
        return is_wrong, np.zeros(0, np.int64)
    sizes, wrong = np.bincount(line), np.bincount(line, weights=is_wrong)
    is_loose = (wrong > FEW) & (wrong > MOST_SHARE * sizes)
    places = np.searchsorted(line, np.flatnonzero(is_loose))
    return is_wrong & ~is_loose[line], places
