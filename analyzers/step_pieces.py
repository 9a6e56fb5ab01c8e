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

from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.communication.calls import calls_of
from moeprof.analyzers.communication.waits import waits_in_steps
from moeprof.columns.coded import Coded
from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table, stacked
from moeprof.tables.clock import comparable_stamps, is_comparable
from moeprof.tables.intervals import Int64s, apart, is_work, lanes, last_begun
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
    spans = device_steps(trace).spans
    known = spans[spans["step"] >= 0]
    if not len(known):
        return -1
    steps = grouped(known, "step")
    lengths = steps.max(known["end_ns"] - known["start_ns"])
    nearest = np.abs(lengths - np.median(lengths)).argmin()
    return int(known["step"][steps.first[nearest]])


def spans_of(trace: Trace, step: int) -> Table:
    """The devices of `trace` in one step (rows of `DeviceSteps.spans`), by rank."""
    spans = device_steps(trace).spans
    found: Table = spans[spans["step"] == step]
    return found.sorted("rank", "host", "device")


def pieces_in(trace: Trace, step: int) -> Table:
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
    segment = segment[inside]
    pieces = Table(
        {
            "row": rows[inside],
            "segment": segment,
            "host": Coded.of(steps.spans["host"])[segment],
            "start_ns": np.maximum(start, first)[inside],
            "end_ns": np.minimum(end, last)[inside],
        }
    )
    return pieces.assign(wait_ns=_waits(trace, pieces))


def on_one_axis(trace: Trace, spans: Table, hosts: Coded, stamps_ns: Int64s) -> Int64s:
    """Stamps of hosts as ns since the step began.

    On the common clock since it began anywhere; where clocks are not aligned, on each host since
    it began there.
    """
    begins = comparable_stamps(trace.meta, spans["host"], spans["start_ns"])
    by_host = grouped(spans, "host")
    firsts = by_host.min(begins)
    if is_comparable(trace.meta):
        firsts[:] = firsts.min()
    begun = dict(zip(spans["host"][by_host.first].tolist(), firsts.tolist(), strict=True))
    origin = hosts.each(lambda host: begun.get(host, 0), np.int64).take(hosts.codes)
    found: Int64s = comparable_stamps(trace.meta, hosts, stamps_ns) - origin
    return found


def _waits(trace: Trace, pieces: Table) -> Int64s:
    """Of each piece the part that lies in its call's wait for the last of its group."""
    found = np.full(len(pieces), UNKNOWN, np.int64)
    calls, events = calls_of(trace), trace.table("events")
    site_of = np.full(len(events), UNKNOWN, np.int64)
    site_of[calls.site_of["row"]] = calls.site_of["site"]
    place = np.flatnonzero(site_of[pieces["row"]] >= 0)
    if not len(calls.table) or not len(place):
        return found
    row, segment = pieces["row"][place], pieces["segment"][place]
    mine = Table(
        {
            "site": site_of[row],
            "rank": device_steps(trace).spans["rank"][segment],
            "host": pieces["host"][place],
            "step": events["step"][row],
        }
    )
    # calls of unknown wait take part: a piece of theirs is not one of the call before
    keys = ("site", "rank", "host", "step")
    made = calls.table.assign(host=Coded.of(calls.table["host"])).select(*keys)
    of_call, of_piece = np.split(grouped(stacked([made, mine]), *keys).of, [len(made)])
    start_ns, wait_ns = calls.table["start_ns"], waits_in_steps(trace)["wait_ns"]
    order = np.lexsort((start_ns, of_call))
    last = last_begun(of_call[order], start_ns[order], of_piece, events["start_ns"][row])
    call = order[np.maximum(last, 0)]
    met = (last >= 0) & (of_call[call] == of_piece) & ~np.isnan(wait_ns[call])
    place, call = place[met], call[met]
    until = (start_ns[call] + wait_ns[call]).astype(np.int64)
    start, end = pieces["start_ns"][place], pieces["end_ns"][place]
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
