"""Question: which recorded routing is of the steps that figures are taken from, on which nodes?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moeprof.analyzers.attribution import window_sums
from moeprof.analyzers.communication.calls import calls_of
from moeprof.columns.grouping import Int64s, grouped
from moeprof.columns.table import Table
from moeprof.tables.trace import Trace

TOKENS, ROWS = "routing", "rows received"
OTHER_STEPS = "routing was recorded for other steps than those of the trace"
_MOST_NAMED = 4


@dataclass(frozen=True)
class Recorded:
    """Rows of `ROUTING` and `RECEIVED`, and what must be said of them.

    ``is_of_window`` tells whether they are of the steps whose times are shown. ``groups`` counts
    the exchange groups; 1 where nothing was recorded of them.
    """

    routing: Table
    received: Table
    is_of_window: bool
    groups: int
    notes: tuple[str, ...]


def recorded(trace: Trace) -> Recorded:
    """The routing of the used steps, else of all recorded steps with a note that says so."""
    routing, received = trace.table("routing"), trace.table("received")
    if not len(routing) and not len(received):
        return Recorded(routing, received, False, 1, ())
    steps = np.array(window_sums(trace).steps, np.int64)
    groups = max(len(grouped(received, "group")), 1)
    if not trace.meta.are_steps_numbered_by_script:
        note = (
            "the trace numbers its steps by their place, the routing as the script does: used rows "
            "are taken from all recorded steps"
        )
        return Recorded(routing, received, False, groups, (note,))
    frames = {TOKENS: routing, ROWS: received}
    inside = {name: frame[np.isin(frame["step"], steps)] for name, frame in frames.items()}
    missed = [name for name in frames if not len(inside[name]) and len(frames[name])]
    notes = (OTHER_STEPS,) if missed else ()
    told = [f"{name}: {_compared(frames[name], steps)}" for name in missed]
    told += [
        f"{name}: {_compared(inside[name], steps)}"
        for name in frames
        if 0 < len(np.unique(inside[name]["step"])) < len(steps)
    ]
    kept = {name: frames[name] if name in missed else inside[name] for name in frames}
    return Recorded(kept[TOKENS], kept[ROWS], not missed, groups, (*notes, *told))


LEFT_OUT = "what was recorded of it is left out (routing_record in the trust record tells why)"


def is_left_out(trace: Trace) -> bool:
    """Whether routing that lies beside the profile is not used, or not all of it."""
    return any(law.check == "routing_record" and law.verdict == "warn" for law in trace.trust)


def missing_rows(trace: Trace, *, are_pairs_known: bool = False) -> str:
    """Why rows really used are not known, where no rank's rows were recorded.

    Those of products are if the pairs of each rank are known.
    """
    routing = trace.table("routing")
    if not len(routing) and is_left_out(trace):
        return f"rows really used are not known: {LEFT_OUT}"
    if not len(routing):
        return "rows really used are not known: the run recorded no routing (moeprof.routing)"
    what = "rows of receive buffers really" if are_pairs_known else "rows really"
    products = (
        "; used rows of products are the pairs that routers chose, right where none is dropped"
        if are_pairs_known
        else ""
    )
    return (
        f"{what} used are not known: the run recorded the tokens of each expert "
        f"({named_steps(np.unique(routing['step']))}), not the rows that each rank received "
        f"(received_rows of moeprof.routing.record){products}"
    )


def named_steps(steps: Iterable[int]) -> str:
    """``step 4``, ``steps 4 to 9``, ``steps 1, 4, 9, 12 and 3 more``."""
    known = sorted(int(step) for step in steps if step != -1)
    if not known:
        return "no step"
    if len(known) == 1:
        return f"step {known[0]}"
    if known[-1] - known[0] == len(known) - 1:
        return f"steps {known[0]} to {known[-1]}"
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"steps {', '.join(map(str, known[:_MOST_NAMED]))}{more}"


def _compared(table: Table, used: Int64s) -> str:
    found = np.unique(table["step"])
    return f"recorded for {named_steps(found)}, while figures are of {named_steps(used)}"


def nodes_of_ranks(trace: Trace, ranks: int) -> Int64s | None:
    """Number of the host of each expert rank, int64 [ranks]; None where it is not known.

    With one exchange group of all devices rank r is device r, unless the groups of the exchanges
    say another order. Of several groups all must have their rank r in the same host.
    """
    devices = trace.table("devices").sorted("rank")
    places, hosts = devices["rank"], np.unique(devices["host"], return_inverse=True)[1]
    if not np.array_equal(places, np.arange(len(places))):
        return None
    groups = {
        group
        for site in calls_of(trace).sites
        if site.opcode in ("all-to-all", "ragged-all-to-all", "custom-call")
        for group in site.groups
        if len(group) == ranks and max(group) < len(places)
    }
    if not groups and len(places) == ranks:
        groups = {tuple(range(ranks))}
    found = {tuple(hosts[list(group)].tolist()) for group in groups}
    return np.array(found.pop(), dtype="int64") if len(found) == 1 else None
