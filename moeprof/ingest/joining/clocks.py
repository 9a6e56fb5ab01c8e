"""Question: how do the clocks of several hosts stand to each other?

A collective ends on all ranks of a group within a few microseconds, whoever came last. So the ends
of the same call on two hosts are two readings of one moment. Calls are the same if module name, op,
execution and place in the execution are: executions are paired by the step's number where the
script or capture gave it, else by their order, if both hosts have equally many.

A host that began a step later has equally many, too. So a pairing by order is believed only where
pairing with an earlier or later execution fits worse, as it does where steps differ in length, or
where the hosts' own clocks, as the profiler noted them at its start, agree to a part of a step;
where a host notes none, as when its file is cut, where it began as near to the others as they did
to each other.

A host is compared with all that are aligned by then, so that hosts without a call in common may be
aligned through a third; one that cannot be takes nothing from the others.

Processes of one machine read one clock. The profiler notes by it when each capture began: that
alone puts stamps of the CPU on one axis. Stamps of a GPU are laid on the machine's clock by each
process for itself, so there the ends of collectives go first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from moeprof.columns.coded import Coded, by_alphabet
from moeprof.columns.grouping import grouped, pairs_of, places_in, unique_rows
from moeprof.columns.table import Table, stacked
from moeprof.hlo.instruction import parse_groups
from moeprof.ingest.joining.common_clock import LEAST_PAIRS, Fit, are_of, fit_clock
from moeprof.ingest.placing.host_tables import HostTables
from moeprof.ingest.sources.processes import Ranked
from moeprof.ingest.xspace.space import Int64s
from moeprof.tables.trace import HostClock

COLLECTIVES = (
    *("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "ragged-all-to-all"),
    "collective-broadcast",
)
"""Opcodes that end on all ranks at once; a permute ends where its own source and target do."""
MOST_RESIDUAL = 0.5
"""Of the median call's transfer: with a larger residual nothing could be said about waiting."""

MOST_DRIFT_PPB = 500_000.0
"""A pairing that makes one clock run faster than that is none: quartz is off by some 50,000."""
_AS_WELL = 3
_AS_WELL_NS = 1000
_MOST_SHIFT = 64
_SAMPLE = 64
_AGREE = 0.25  # of the distance to the next pairing that fits

_READ_NS = 1_000
"""Two stamps of one machine's clock: what reading it takes."""
_LAID_NS = 100_000
"""Stamps of devices whose clocks two processes of a machine have each laid on that of the host."""

_KEY = ["module", "op", "round", "execution", "call", "group"]
_RANK = ("host", "device", "rank")
_ALONE = -(2**32)
"""Below the numbers of devices without a rank."""


def align(
    tables: Sequence[HostTables], calls: Table, ops: Table, found: Ranked
) -> tuple[tuple[HostClock, ...], dict[str, str]]:
    """Clocks of the hosts against the first one's, in their order; why others have none, by host.

    `calls` are `pieces_of_collectives`. None where no two can be aligned. The first is the first
    whose steps have numbers of their own, if any has.
    """
    if len(tables) < 2:
        return (), {}
    rows = np.flatnonzero(are_of(ops, COLLECTIVES))
    if not len(rows) and not _share_a_machine(tables):
        return (), {table.host.name: "no collective in the programs" for table in tables}
    numbered = [table for table in tables if table.cut.is_as_in_script]
    first = next(iter(numbered or tables))
    calls = _with_groups(calls, ops, rows, found)
    by_host = {table.host.name: calls[calls["host"] == table.host.name] for table in tables}
    pool = _Pool(first, tables, by_host)
    waiting = [table for table in (*numbered, *tables) if table is not first]
    waiting = list({table.host.name: table for table in waiting}.values())
    clocks = {first.host.name: HostClock(first.host.name, 0, 0.0, 0, 0)}
    why: dict[str, str] = {}
    while True:
        left = []
        for table in waiting:
            clock, reason = pool.fitted(table)
            if clock is None:
                why[table.host.name] = reason
                left.append(table)
            else:
                clocks[table.host.name] = clock
                pool.add(table, clock)
        if not left or len(left) == len(waiting):
            break
        waiting = left
    names = [table.host.name for table in tables]
    told = {name: why[name] for name in names if name not in clocks}
    ordered = sorted(clocks, key=lambda name: (name != first.host.name, names.index(name)))
    return (tuple(clocks[name] for name in ordered) if len(clocks) > 1 else ()), told


class _Pool:
    """Ends of calls on the hosts that are aligned by now, on the first one's clock."""

    def __init__(
        self, first: HostTables, tables: Sequence[HostTables], calls: Mapping[str, Table]
    ) -> None:
        """Begin with the first host, by every way in which another one may be paired with it."""
        self._first, self._calls, self._numbers = first, calls, _numbers(tables)
        self._known = [(first, HostClock(first.host.name, 0, 0.0, 0, 0))]
        self._offsets = [0]
        ways = {self._by_step(table) for table in tables}
        self._ends = {way: self._ends_on(first, way) for way in ways}

    def _ends_on(self, table: HostTables, by_step: bool) -> Table:
        return _ends(table, self._calls[table.host.name], self._numbers[table.host.name], by_step)

    def _by_step(self, table: HostTables) -> bool:
        return table.cut.is_as_in_script and self._first.cut.is_as_in_script

    def fitted(self, table: HostTables) -> tuple[HostClock | None, str]:
        """The clock of a host, or why it is not known."""
        shared = self._of_machine(table)
        if shared is not None and table.host.platform == "cpu":
            return shared, ""
        clock, why = self._by_ends(table)
        return clock or shared, why

    def _of_machine(self, table: HostTables) -> HostClock | None:
        """The clock of another process of the same machine, which counts from another start."""
        for other, clock in self._known:
            noted_ns = _noted_ns(other, table)
            if noted_ns is not None and _are_of_one_machine(other, table):
                drift_ns = round(clock.drift_ppb * 1e-9 * noted_ns)
                apart_ns = _READ_NS if table.host.platform == "cpu" else _LAID_NS
                return replace(
                    clock,
                    host=table.host.name,
                    offset_ns=clock.offset_ns + noted_ns - drift_ns,
                    residual_ns=clock.residual_ns + apart_ns,
                )
        return None

    def _by_ends(self, table: HostTables) -> tuple[HostClock | None, str]:
        """The clock that the ends of shared collectives tell, or why they tell none."""
        way = self._by_step(table)
        both = _of_both(self._ends[way], self._ends_on(table, way))
        fit = fit_clock(both["end_ns_y"], both["end_ns_y"] - both["end_ns_x"])
        if fit is None:
            return None, f"{len(both)} shared calls of collectives, {LEAST_PAIRS} needed"
        transfer_ns = float(np.median(both["length_ns"]))
        if fit.residual_ns > MOST_RESIDUAL * transfer_ns:
            told = f"{fit.residual_ns:,} ns remain, collectives last {transfer_ns:,.0f} ns"
            return None, told
        if not way and (doubt := _doubt(both, fit, self._expected_ns(table))):
            return None, doubt
        return HostClock(table.host.name, *fit), ""

    def _expected_ns(self, table: HostTables) -> tuple[int, int] | None:
        """Between which offsets that of a host lies, if its own clock or the others' tell.

        Hosts that began together are as far apart as those whose steps have numbers show.
        """
        noted_ns = _noted_ns(self._first, table)
        if noted_ns is not None:
            return noted_ns, noted_ns
        is_told = len(self._offsets) > 1
        return (min(self._offsets), max(self._offsets)) if is_told else None

    def add(self, table: HostTables, clock: HostClock) -> None:
        """Take in the ends of a host that was aligned."""
        self._known.append((table, clock))
        if self._by_step(table):
            self._offsets.append(clock.offset_ns)
        for way, known in self._ends.items():
            if way and not self._by_step(table):
                continue
            more = self._ends_on(table, way)
            at_ns = more["end_ns"]
            drift_ns = np.rint(clock.drift_ppb * 1e-9 * at_ns.astype(np.float64)).astype(np.int64)
            more = more.assign(end_ns=at_ns - clock.offset_ns - drift_ns)
            self._ends[way] = unique_rows(stacked([known, more]), *_KEY, "rounds")


def _of_both(one: Table, other: Table) -> Table:
    """Calls that two tables of ends have in common: the ends in each, the shorter length."""
    rows, at = pairs_of(one, other, *_KEY)
    both = one[rows].assign(
        end_ns_x=one["end_ns"][rows],
        end_ns_y=other["end_ns"][at],
        length_ns=np.minimum(one["length_ns"][rows], other["length_ns"][at]),
    )
    found: Table = both[both["rounds"] == other["rounds"][at]]
    return found


def _noted_ns(first: HostTables, other: HostTables) -> int | None:
    """By how much the stamps of `other` are ahead if both hosts' own clocks are right.

    Stamps count from the start of each capture. None where a start is not noted.
    """
    if not first.host.started_ns or not other.host.started_ns:
        return None
    return first.host.started_ns - other.host.started_ns


def _are_of_one_machine(one: HostTables, other: HostTables) -> bool:
    return bool(one.host.machine) and one.host.machine == other.host.machine


def _share_a_machine(tables: Sequence[HostTables]) -> bool:
    return any(_are_of_one_machine(one, other) for one, other in combinations(tables, 2))


def _doubt(both: Table, fit: Fit, expected_ns: tuple[int, int] | None) -> str:
    """Why executions paired by their order may not be the same ones; empty where they are.

    `expected_ns` are the least and the most that the offset should be, None where nothing tells.
    """
    sample = _sample(both)
    if not sample:
        return ""
    ahead_ns = fit.offset_ns
    others = _others_that_fit(sample)
    has_one = int(sample["rounds"][0]) == 1
    if not others and not has_one:
        return ""
    # A single execution on each host is compared with nothing: only the hosts' clocks speak for it.
    ends = sample["end_ns_x"]
    apart_ns = min((abs(o - ahead_ns) for o in others.values()), default=int(np.ptp(ends)))
    if expected_ns is not None:
        least_ns, most_ns = expected_ns
        if least_ns - _AGREE * apart_ns <= ahead_ns <= most_ns + _AGREE * apart_ns:
            return ""
    if has_one:
        return "one execution on each host, and nothing tells that it is the same step"
    shift = min(others, key=lambda s: (abs(s), s))
    told = f"{abs(shift)} execution(s) {'later' if shift > 0 else 'earlier'} fits as well"
    return f"steps are numbered by their place in the capture, and pairing with those {told}"


def _sample(both: Table) -> Table:
    """Some calls, in all of their executions, of the program that has the most."""
    if not both:
        return both
    modules, counts = np.unique(both["module"], return_counts=True)
    mine = both[both["module"] == modules[np.argmax(counts)]]
    calls = grouped(mine, "op", "call", "group")
    every = -(-len(calls) // _SAMPLE)
    sample: Table = mine.assign(call=calls.of)[calls.of % every == 0]
    return sample


def _others_that_fit(sample: Table) -> dict[int, int]:
    """Shift in executions -> offset, ns, of the pairings that fit about as well as by order.

    Half of the executions at least must remain in common: a single one would fit any other.
    """
    own = _shifted(sample, 0)
    if own is None:
        return {}
    most = min(max(int(sample["execution"].max() + 1) // 2, 1), _MOST_SHIFT)
    found = {}
    for shift in (s for s in range(-most, most + 1) if s):
        fit = _shifted(sample, shift)
        is_fit = fit is not None and abs(fit.drift_ppb) <= MOST_DRIFT_PPB
        if fit and is_fit and fit.residual_ns <= _AS_WELL * own.residual_ns + _AS_WELL_NS:
            found[shift] = fit.offset_ns
    return found


def _shifted(sample: Table, shift: int) -> Fit | None:
    """The fit if the first host's executions are those `shift` later on the other one."""
    later = sample.assign(execution=sample["execution"] - shift)
    rows, at = pairs_of(sample, later, "call", "execution")
    ends = later["end_ns_y"][at]
    return fit_clock(ends, ends - sample["end_ns_x"][rows])


def pieces_of_collectives(events: Table, ops: Table) -> Table:
    """Pieces of collectives in known executions, by host, device and start, with their ends."""
    is_one = np.append(are_of(ops, COLLECTIVES), False)  # that of work of no instruction
    is_call = is_one[events["instruction"]] & (events["run_id"] != -1)
    columns = ("host", "device", "module", "run_id", "instruction", "start_ns", "duration_ns")
    calls = events.select(*columns)[is_call]
    found: Table = calls.assign(end_ns=calls["start_ns"] + calls["duration_ns"])
    return found


def _with_groups(calls: Table, ops: Table, rows: Int64s, found: Ranked) -> Table:
    """`calls` with a number for the op, the place in its execution, and that of its group.

    `rows` are those of collectives in `HLO_OPS`; numbers are in the order of the ops' names.
    """
    rank_of = {(host, device): rank for host, device, rank in found.devices.rows(*_RANK)}
    places = grouped(calls, "host", "device")
    pairs = calls[places.first].rows("host", "device")
    ranks = np.array([rank_of.get(pair, -1) for pair in pairs], np.int64)[places.of]
    op = np.full(len(ops), -1, np.int64)
    op[rows] = by_alphabet(Coded.of(ops["op"][rows])).codes
    own = grouped(calls, "host", "device", "module", "run_id", "instruction")
    return calls.assign(
        op=op[calls["instruction"]],
        call=own.place(),
        group=_groups(ops["replica_groups"], calls, ranks, found),
    )


def _ends(table: HostTables, calls: Table, numbers: Mapping[int, int], by_step: bool) -> Table:
    """The last end of each call and group on a host, the length of its last comer, and `_KEY`.

    `calls` are those of the host, `numbers` those of its programs in place of their ids.
    """
    rounds = _rounds(table, numbers, by_step)
    at = places_in(calls, rounds, "module", "run_id")
    calls, at = calls[at >= 0], at[at >= 0]
    names = rounds["name"][at]  # ids of one program differ between hosts
    known = {name: rounds[name][at] for name in ("round", "execution", "rounds")}
    pieces = calls.assign(module=names, **known)
    own = grouped(pieces, *_KEY)
    start_ns, end_ns = own.max(pieces["start_ns"]), own.max(pieces["end_ns"])
    found: Table = pieces.select(*_KEY, "rounds")[own.first]
    return found.assign(end_ns=end_ns, length_ns=end_ns - start_ns)


def _numbers(tables: Sequence[HostTables]) -> dict[str, dict[int, int]]:
    """By host a number for each program that ran: ids of one differ between hosts, names do not."""
    named = {
        table.host.name: {module: _name(table, module) for module in _modules(table)}
        for table in tables
    }
    every = sorted({name for own in named.values() for name in own.values()})
    number = {name: at for at, name in enumerate(every)}
    return {
        host: {module: number[name] for module, name in own.items()} for host, own in named.items()
    }


def _modules(table: HostTables) -> list[int]:
    found: list[int] = np.unique(table.executions["module"]).tolist()
    return found


def _name(table: HostTables, module: int) -> str:
    program = table.host.programs.get(module)
    return program.name if program is not None else str(module)


def _rounds(table: HostTables, numbers: Mapping[int, int], by_step: bool) -> Table:
    """Number of the name, step or 0, place in it, places to compare, of each (module, run id)."""
    executions = table.executions
    own = grouped(executions, "module", "run_id")
    order = np.argsort(own.min(executions["start_ns"]), kind="stable")
    runs: Table = executions.select("module", "run_id")[own.first[order]]
    steps = [table.step_of.get(pair, -1) if by_step else 0 for pair in runs.rows()]
    name = [numbers[module] for module in runs["module"].tolist()]
    runs = runs.assign(round=np.array(steps, np.int64), name=np.array(name, np.int64))
    runs = runs[np.flatnonzero(runs["round"] != -1)]
    rounds = grouped(runs, "name", "round")
    return runs.assign(execution=rounds.place(), rounds=rounds.size[rounds.of])


def _groups(texts: np.ndarray, calls: Table, ranks: Int64s, known: Ranked) -> Int64s:
    """Which group of its collective, by row of `texts`, a call is in; 0 where all are in one.

    A device that is in none, or whose rank is not known, is a group of its own.
    """
    instructions, modules = calls["instruction"], calls["module"]
    found = np.zeros(len(calls), np.int64)
    for row in np.unique(instructions).tolist():
        mine = np.flatnonzero(instructions == row)
        members = known.of_module.get(int(modules[mine[0]]), ())
        group_of = {
            members[member] if member < len(members) else member: place
            for place, own in enumerate(parse_groups(texts[row]))
            for member in own
        }
        is_of_all = len(group_of) == len(known.devices) and set(group_of.values()) == {0}
        if group_of and not is_of_all:
            found[mine] = [
                group_of.get(r, _ALONE - r if r >= 0 else r) for r in ranks[mine].tolist()
            ]
    return found
