"""Question: which pieces of device work lie in one step, and when, on one axis for all devices?

Where a picture cannot hold them all, pieces shorter than a resolution are merged with those that
follow them in the same row and in the same cell of a grid of that width; a longer piece always
stays alone. So a merged piece is never longer than two cells, and counts and busy times of the
pieces add up to those of the work, to the nanosecond: where a reader zooms in, the picture says
what it merged and never leaves anything out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.communication.calls import calls_of
from moeprof.analyzers.communication.waits import waits_in_steps
from moeprof.tables.clock import comparable_stamps, is_comparable
from moeprof.tables.intervals import Int64s, apart, is_work, lanes
from moeprof.tables.trace import Trace


def rows_within(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Row of each piece within its track, from 0, first by lane, then by depth.

    `track` numbers the tracks from 0; intervals are half open, in ns, none ends before it starts.
    """
    if not len(track):
        return np.zeros(0, np.int64)
    lane = lanes(track, start_ns, end_ns)
    depth = _depths(_numbered(track, lane), start_ns, end_ns)
    place = _numbered(track, lane, depth)
    firsts = np.full(int(track.max()) + 1, len(place), np.int64)
    np.minimum.at(firsts, track, place)
    row: Int64s = place - firsts[track]
    return row


def _depths(group: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """How many intervals of its group each lies in; those of a group enclose or follow each other.

    An interval of no length lies in those that have begun by then, and in none of its kind.
    """
    order = np.lexsort((-end_ns, start_ns, group))
    shift = apart(group, start_ns, end_ns)
    start, end = (start_ns + shift)[order], (end_ns + shift)[order]
    is_long = end > start
    begun: Int64s = np.cumsum(is_long) - is_long
    ended = np.searchsorted(np.sort(end[is_long]), start, "right")
    depth = np.empty(len(group), np.int64)
    depth[order] = begun - ended
    return depth


def _numbered(*keys: Int64s) -> Int64s:
    """Number of each combination of keys, from 0, in their order."""
    joint = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        joint = joint * (int(key.max(initial=0)) + 1) + key
        joint = np.unique(joint, return_inverse=True)[1].astype(np.int64)
    return joint


UNKNOWN = -1


def typical_step(trace: Trace) -> int:
    """The used step whose length is nearest to the median, of two the first; -1 without a step."""
    spans = device_steps(trace).spans.pandas()
    known = spans[spans["step"] >= 0]
    if known.empty:
        return -1
    lengths = (known["end_ns"] - known["start_ns"]).groupby(known["step"]).max()
    steps: Int64s = lengths.index.to_numpy()
    return int(steps[(lengths - lengths.median()).abs().to_numpy().argmin()])


def spans_of(trace: Trace, step: int) -> pd.DataFrame:
    """The devices of `trace` in one step (rows of `DeviceSteps.spans`), by rank."""
    spans = device_steps(trace).spans.pandas()
    return spans[spans["step"] == step].sort_values(["rank", "host", "device"])


def pieces_in(trace: Trace, step: int) -> pd.DataFrame:
    """The work in a step, cut at its borders: what only waits for work is left out.

    Columns: row (of `EVENTS`), segment (of `DeviceSteps.spans`), host, start_ns and end_ns on the
    host's own clock, and wait_ns, of a collective the part in which it waits for the last of its
    group; -1 where that is not known or there is none.
    """
    steps = device_steps(trace)
    in_step = steps.spans["step"] == step
    is_shown = in_step[steps.segment] & is_work(trace.table("events"))[steps.rows]
    rows, segment = steps.rows[is_shown], steps.segment[is_shown]
    # of a step that the next one overlaps all is drawn
    first, last = (steps.spans[name][segment] for name in ("start_ns", "end_ns"))
    start, end = steps.start_ns[is_shown], steps.end_ns[is_shown]
    inside = (end > first) & (start < last) | (end == start)  # instants at a border are joined too
    pieces = pd.DataFrame(
        {
            "row": rows[inside],
            "segment": segment[inside],
            "host": steps.spans["host"][segment[inside]],
            "start_ns": np.maximum(start, first)[inside],
            "end_ns": np.minimum(end, last)[inside],
        }
    )
    return pieces.assign(wait_ns=_waits(trace, pieces))


def on_one_axis(trace: Trace, spans: pd.DataFrame, hosts: pd.Series, stamps_ns: Int64s) -> Int64s:
    """Stamps of hosts as ns since the step began.

    On the common clock since it began anywhere; where clocks are not aligned, on each host since
    it began there.
    """
    first_ns = spans["start_ns"].to_numpy()
    begins = pd.Series(comparable_stamps(trace.meta, spans["host"], first_ns), index=spans["host"])
    by_host = begins.groupby(level=0).min()
    if is_comparable(trace.meta):
        by_host[:] = by_host.min()
    origin: Int64s = hosts.astype("str").map(by_host).fillna(0).to_numpy(dtype=np.int64)
    return comparable_stamps(trace.meta, hosts, stamps_ns) - origin


def _waits(trace: Trace, pieces: pd.DataFrame) -> Int64s:
    """Of each piece the part that lies in its call's wait for the last of its group."""
    found = np.full(len(pieces), UNKNOWN, np.int64)
    calls = calls_of(trace)
    made = calls.table.assign(wait_ns=waits_in_steps(trace)["wait_ns"]).pandas()
    site_of = calls.site_of.pandas().set_index("row")["site"]
    site = site_of.reindex(pieces["row"], fill_value=UNKNOWN).to_numpy()
    if made.empty or not (site >= 0).any():
        return found
    ranks = device_steps(trace).spans["rank"][pieces["segment"]]
    events = trace.events
    mine = pd.DataFrame(
        {
            "place": np.arange(len(pieces)),
            "site": site.astype(np.int64),
            "rank": ranks,
            "host": pieces["host"],
            "step": events["step"].to_numpy()[pieces["row"]],
            "at_ns": events["start_ns"].to_numpy()[pieces["row"]],
        }
    )[site >= 0].sort_values("at_ns", kind="stable")
    keys = ["site", "rank", "host", "step"]
    # calls of unknown wait take part: a piece of theirs is not one of the call before
    calls_by_start = made.assign(at_ns=made["start_ns"]).sort_values("at_ns", kind="stable")
    met = pd.merge_asof(mine, calls_by_start[[*keys, "at_ns", "wait_ns", "start_ns"]],
                        on="at_ns", by=keys).dropna(subset=["start_ns", "wait_ns"])  # fmt: skip
    place = met["place"].to_numpy()
    until = (met["start_ns"] + met["wait_ns"]).to_numpy().astype(np.int64)
    start, end = pieces["start_ns"].to_numpy()[place], pieces["end_ns"].to_numpy()[place]
    found[place] = np.maximum(np.minimum(until, end) - start, 0)
    return found


_FINENESS = 1.1
"""The resolution is at most so many times the finest that the budget allows."""


class Merged(NamedTuple):
    """What is drawn, one entry per piece, in order of row and start.

    ``shown`` is the place (in the order that was given) of the piece of work that names it: of the
    component with most of its busy time, the first piece of that component's costliest name.
    ``shown_ns`` is the busy time of that name. ``slice_of`` gives for each piece of work, in the
    order that was given, the piece that it is drawn in.
    """

    start_ns: Int64s
    end_ns: Int64s
    busy_ns: Int64s
    pieces: Int64s
    shown: Int64s
    shown_ns: Int64s
    slice_of: Int64s


def resolution_for(row: Int64s, start_ns: Int64s, end_ns: Int64s, most: int) -> int:
    """The width in ns below which pieces must be merged for at most `most` to remain; 0 for none.

    Starts are not negative. Where even one piece per row is too many, that is what remains.
    """
    if len(row) <= most:
        return 0
    order = np.lexsort((start_ns, row))
    row, start_ns, end_ns = row[order], start_ns[order], end_ns[order]
    low, high = 1.0, float(end_ns.max() + 2)
    while high / low > _FINENESS:
        middle = int(np.sqrt(low * high)) + 1
        if middle >= high:
            break
        if int(_begins(row, start_ns, end_ns, middle).sum()) <= most:
            high = float(middle)
        else:
            low = float(middle)
    return int(high)


def merged(
    row: Int64s,
    start_ns: Int64s,
    end_ns: Int64s,
    component: Int64s,
    name: Int64s,
    *,
    resolution_ns: int,
) -> Merged:
    """Merge pieces shorter than the resolution; with 0 each piece of work stays alone.

    ``component`` and ``name`` are codes; pieces of one row must not overlap.
    """
    order = np.lexsort((end_ns, start_ns, row))
    row, start, end = row[order], start_ns[order], end_ns[order]
    begins = _begins(row, start, end, resolution_ns)
    piece = np.cumsum(begins) - 1
    firsts = np.flatnonzero(begins)
    length = end - start
    shown, shown_ns = _named(piece, length, component[order], name[order], len(firsts))
    slice_of = np.empty(len(order), np.int64)
    slice_of[order] = piece
    return Merged(
        start_ns=start[firsts],
        end_ns=np.maximum.reduceat(end, firsts) if len(firsts) else end,
        busy_ns=_sums(piece, length, len(firsts)),
        pieces=np.bincount(piece, minlength=len(firsts)).astype(np.int64),
        shown=order[shown],
        shown_ns=shown_ns,
        slice_of=slice_of,
    )


def _begins(row: Int64s, start_ns: Int64s, end_ns: Int64s, resolution_ns: int) -> np.ndarray:
    """Whether a new piece begins at each piece of work; all in order of row and start."""
    begins = np.ones(len(row), bool)
    if resolution_ns:
        cell = start_ns // resolution_ns
        is_short = end_ns - start_ns < resolution_ns
        is_near = (row[1:] == row[:-1]) & (cell[1:] == cell[:-1])
        begins[1:] = ~(is_near & is_short[1:] & is_short[:-1])
    return begins


def _named(
    piece: Int64s, length: Int64s, component: Int64s, name: Int64s, pieces: int
) -> tuple[Int64s, Int64s]:
    """For each piece the place of the work that names it, and the busy time of that name."""
    by_component = _largest(piece, component, length, pieces)
    is_of_it = component == by_component[piece]
    places = np.flatnonzero(is_of_it)
    by_name = _largest(piece[places], name[places], length[places], pieces)
    places = places[name[places] == by_name[piece[places]]]
    first = np.full(pieces, len(piece), np.int64)
    np.minimum.at(first, piece[places], places)
    return first, _sums(piece[places], length[places], pieces)


def _largest(piece: Int64s, code: Int64s, length: Int64s, pieces: int) -> Int64s:
    """The code with the largest sum of lengths in each piece; of equal ones the smallest code."""
    wide = int(code.max(initial=0)) + 1
    pairs, place = np.unique(piece * wide + code, return_inverse=True)
    sums = _sums(place, length, len(pairs))
    order = np.lexsort((-pairs, sums, pairs // wide))
    largest = np.zeros(pieces, np.int64)
    largest[(pairs // wide)[order]] = (pairs % wide)[order]  # the last of a piece stays
    return largest


def _sums(place: Int64s, lengths: Int64s, places: int) -> Int64s:
    # float64 sums of whole numbers are exact below 2**53 ns, 104 days
    return np.bincount(place, weights=lengths, minlength=places).astype(np.int64)
