"""Question: which pieces are recorded as longer than they ran, and how long can they have run?

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

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from moeprof.columns.grouping import grouped_columns
from moeprof.columns.table import Table
from moeprof.ingest.placing.step import Step
from moeprof.ingest.planes.record import Labels
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.units import format_ns
from moeprof.vocabulary import COMMUNICATION, kind_of_kernel

SERIAL_KINDS = ("kernel", "copy", "memset")
MOST_SHARE = 0.05
"""A line with a larger share of such pieces, and more than `FEW` of them, is not serial."""
FEW = 3


class Repaired(NamedTuple):
    """Work with ``recorded_ns`` and its impossible ends cut, and the lines left alone."""

    work: Table
    not_serial: tuple[str, ...]


def repaired(work: Table, labels: Labels) -> Repaired:
    """Cut the impossible ends in `work`, which has `record.COLUMNS` and is in order of start.

    ``recorded_ns`` is the length as recorded, before repair. Stamps in ns.
    """
    starts, ends = work["start_ns"], work["end_ns"]
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
    named = dict.fromkeys(texts[code] for code in work["line"][order[loose]].tolist())
    return Repaired(whole.assign(end_ns=cut_ns), tuple(named))


def _by_line(work: Table, labels: Labels) -> tuple[Int64s, Int64s]:
    """Places of the pieces that take time on streams, by line, then start; numbers of the lines."""
    kinds = [labels.code(kind) for kind in SERIAL_KINDS]
    is_serial = np.zeros(len(labels.texts), bool)
    is_serial[kinds] = True
    takes_time = work["end_ns"] > work["start_ns"]
    places = np.flatnonzero(is_serial[work["kind"]] & takes_time)
    device, line = work["device"][places], work["line"][places]
    number = grouped_columns([device, line], is_sorted=False).of
    # numpy sorts 16 bits by radix, many times as fast as 64
    is_small = number.max(initial=0) < np.iinfo(np.int16).max
    order = np.argsort(number.astype(np.int16) if is_small else number, kind="stable")
    return places[order], number[order]


def _any_outlives(line: Int64s, ends: Int64s) -> bool:
    """Whether any piece ends after the next one of its line: seldom, and cheap to rule out."""
    return bool(((ends[1:] < ends[:-1]) & (line[1:] == line[:-1])).any())


def _launches(work: Table, order: Int64s) -> Int64s:
    """What tells launches apart: the correlation id; a piece without one is its own launch."""
    ids = work["correlation_id"][order]
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


# Which last pieces of streams are recorded as longer than they can have run?
#
# A piece that ends too late is cut where the next one of its stream begins, as above. The last
# one of a stream has none behind it. It is compared with the other executions of its op, or of
# kernels of its name: so much longer than the longest of them is no variation of one kernel, but
# an end that the profiler made up when it stopped. Such a piece is cut to the longest of the
# others, and the step that holds it is not used. A collective may wait as long for a rank that
# comes late: it is one of these only if it is longer than all that was recorded before it, and
# stays as it is.

LONGEST, MEDIAN = 5, 10
"""Longer than so many times the longest, and the median, of the others."""
_FEWEST = 2
_MATTERS = 0.005
"""Of the other work of its device: a shorter excess alters no figure."""
_COLLECTIVES = ("all-", "ragged-all-to-all", "reduce-scatter", "collective-", "send", "recv")


@dataclass(frozen=True)
class Endless:
    """A last piece recorded as too long. ``row`` is its place in the work, ``others`` counts the
    executions that it is compared with; lengths in ns."""

    row: int
    device: int
    op: str
    recorded_ns: int
    longest_ns: int
    median_ns: float
    others: int
    is_cut: bool
    step: int = -1

    @property
    def told(self) -> str:
        """What was recorded, against what."""
        return (
            f"{self.op} on GPU {self.device}: {format_ns(self.recorded_ns)} against "
            f"{format_ns(self.median_ns)} in the other {self.others:,} executions of it "
            f"(× {self.recorded_ns / max(self.median_ns, 1):,.0f})"
        )


def endless_pieces(
    work: Table, opcodes: np.ndarray, labels: Labels, not_serial: Collection[str]
) -> tuple[Table, tuple[Endless, ...]]:
    """`work` with such pieces cut, and what they were; ``recorded_ns`` stays as recorded.

    `work` is in order of device and start and has instruction, the row in `opcodes`.
    """
    places = _last_of_streams(work, labels, not_serial)
    judged = [_judged(work, at, places, opcodes, labels) for at in places.tolist()]
    found = _unbounded([one for one in judged if one], work)
    cut = [one for one in found if one.is_cut]
    if not cut:
        return work, tuple(found)
    ends = work["end_ns"].copy()
    for one in cut:
        ends[one.row] = int(work["start_ns"][one.row]) + one.longest_ns
    return work.assign(end_ns=ends), tuple(found)


def without_endless(
    steps: list[Step], found: Sequence[Endless], step: Int64s
) -> tuple[list[Step], tuple[Endless, ...]]:
    """The steps with those not used that hold such a piece, and the pieces with their steps."""
    placed = tuple(replace(one, step=int(step[one.row])) for one in found)
    held = {one.step: one for one in reversed(placed) if one.step != -1}
    return [
        replace(own, reason=f"its last kernel has no end: {held[own.step].told}")
        if own.step in held and not own.reason
        else own
        for own in steps
    ], placed


def _last_of_streams(work: Table, labels: Labels, not_serial: Collection[str]) -> Int64s:
    """Places of the last piece of each serial stream."""
    kinds = [labels.code(kind) for kind in SERIAL_KINDS]
    loose = [labels.code(line) for line in not_serial]
    is_one = np.isin(work["kind"], kinds) & ~np.isin(work["line"], loose)
    rows = np.flatnonzero(is_one)
    if not len(rows):
        return rows
    device, line = work["device"][rows], work["line"][rows]
    return np.sort(grouped_columns([device, line]).max(rows))


def _unbounded(found: Sequence[Endless], work: Table) -> list[Endless]:
    """Those that end behind all else on their device: work that goes on elsewhere bounds others."""
    if not found:
        return []
    ends = work["end_ns"]
    is_else = np.ones(len(work), bool)
    is_else[[one.row for one in found]] = False
    device = work["device"][is_else]
    others = grouped_columns([device])
    lasts = others.max(ends[is_else]).tolist()
    last_ns = dict(zip(device[others.first].tolist(), lasts, strict=True))
    return [one for one in found if ends[one.row] > last_ns.get(one.device, 0)]


def _judged(
    work: Table, at: int, lasts: Int64s, opcodes: np.ndarray, labels: Labels
) -> Endless | None:
    names = ("device", "name", "op", "kind", "instruction")
    row = {name: int(work[name][at]) for name in names}
    has_op = row["instruction"] >= 0
    if not has_op and row["kind"] != labels.code("kernel"):
        return None  # copies of any size have one name
    is_like = work["name"] == row["name"]
    if has_op:
        is_like &= work["instruction"] == row["instruction"]
    is_like[lasts] = False
    starts, ends = work["start_ns"], work["end_ns"]
    others = (ends - starts)[is_like]
    own = int(ends[at] - starts[at])
    if len(others) < _FEWEST:
        return None
    longest, median = int(others.max()), float(np.median(others))
    if own <= max(LONGEST * longest, MEDIAN * median):
        return None
    is_mine = work["device"] == row["device"]
    if own - longest <= _MATTERS * (int((ends - starts)[is_mine].sum()) - own):
        return None
    name = labels.texts[row["name"]]
    opcode = str(opcodes[row["instruction"]]) if has_op else ""
    waits = kind_of_kernel(name) in COMMUNICATION or opcode.startswith(_COLLECTIVES)
    if waits and own <= (starts[at] - starts[is_mine].min()):
        return None
    return Endless(
        row=at,
        device=row["device"],
        op=labels.texts[row["op"]] or name,
        recorded_ns=own,
        longest_ns=longest,
        median_ns=median,
        others=len(others),
        is_cut=not waits,
    )
