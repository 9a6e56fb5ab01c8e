"""Question: when does each device enter and leave each call of a collective, and which rank is it?

One call may be several pieces of device work: a barrier, the kernel, a barrier; a copy per peer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moeprof import vocabulary
from moeprof.analyzers.activity.work import COMMUNICATION, classes_of_events
from moeprof.analyzers.attribution import sure_rows
from moeprof.analyzers.communication.sites import NOT_KNOWN, Site, sites_of
from moeprof.analyzers.window import rows_in_window
from moeprof.columns.coded import Coded
from moeprof.columns.grouping import Groups, grouped, grouped_columns, places_in, spread
from moeprof.columns.table import Table
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

CALLS = Schema(
    "calls",
    (
        Column("site", "int64", "", "place in the list of call sites"),
        Column("host", "text", "", "host of the device"),
        Column("rank", "int64", "", "place of the device among all"),
        Column("step", "int64", "", "step"),
        Column("call", "int64", "", "number of the call within its step, from 0"),
        Column("start_ns", "int64", "ns", "start of its first piece, on the host's clock"),
        Column("end_ns", "int64", "ns", "end of its last piece, on the host's clock"),
        Column("busy_ns", "int64", "ns", "self time of its pieces"),
    ),
)

_OPCODES = {
    "ragged_all_to_all": "ragged-all-to-all",
    "all_to_all": "all-to-all",
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "broadcast": "collective-broadcast",
    "permute": "collective-permute",
    "send_recv": "send-recv",
}
"""By kind of operation in the vocabulary: of kernels, and of ops whose program is missing."""
_VARIANT = re.compile(r"_(?:RING|TREE|COLLNET|NVLS|PAT)(?:_\w+)?(?:\(.*)?$")
"""Algorithm and protocol in the name of an NCCL kernel, chosen anew for each call."""
_PLACE = ("op", "host", "device", "step")

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calls:
    """`CALLS`, the sites that their ``site`` column counts, and the site of each piece.

    ``site_of`` are rows (row, site): of the rows of `EVENTS` that the calls are made of.
    """

    table: Table
    sites: tuple[Site, ...]
    site_of: Table


@once
def calls_of(trace: Trace) -> Calls:
    """The calls of the used steps, by site, rank, step and call."""
    recorded = recorded_calls(trace)
    ops = recorded.ops
    sites = sites_of(trace, [op for op in ops if isinstance(op, int)], ranks_by_module(trace))
    sites = with_ranks(trace, sites)
    places: dict[int | str, int] = {site.row: place for place, site in enumerate(sites)}
    for name in (op for op in ops if isinstance(op, str)):
        places[name] = len(sites)
        sites.append(_unattributed(name))
    place_of = np.array([places[op] for op in ops], np.int64)
    calls = recorded.table
    calls = calls.assign(site=place_of[calls["op"]], rank=_ranks(trace, calls))
    table = CALLS.table(calls.sorted("site", "rank", "step", "call").columns)
    op_of = recorded.op_of
    return Calls(table, tuple(sites), Table({"row": op_of["row"], "site": place_of[op_of["op"]]}))


def _ranks(trace: Trace, table: Table) -> Int64s:
    """The rank of the device of each row; -1 where `DEVICES` does not know it."""
    of = grouped(table, "host", "device")
    devices = trace.table("devices")
    at = places_in(table.select("host", "device")[of.first], devices, "host", "device")
    ranks: Int64s = spread(np.append(devices["rank"], -1)[at], of)
    return ranks


@dataclass(frozen=True)
class RecordedCalls:
    """Calls of the used steps before sites and ranks are known of all hosts.

    ``ops`` are the rows of `HLO_OPS` whose calls they are, in order, then the names of kernels of
    no known op. ``table`` has the columns of `CALLS` with ``op``, a place in these, and ``device``
    for site and rank. ``op_of`` are rows (row, op): that place by row of `EVENTS`.
    """

    ops: tuple[int | str, ...]
    table: Table
    op_of: Table


@once
def recorded_calls(trace: Trace) -> RecordedCalls:
    """The calls of each device in the used steps."""
    rows = rows_in_window(trace)
    rows = rows[classes_of_events(trace)[rows] == COMMUNICATION]
    work = trace.table("events")[rows]
    op, ops = _with_ops(trace, work)
    known = np.flatnonzero(op >= 0)
    known = known[np.argsort(work["start_ns"][known], kind="stable")]
    pieces = work[known].assign(op=op[known])
    places = grouped(pieces, *_PLACE)
    number = _call_numbers(places, _kernels(pieces["name"]))
    calls = grouped_columns([places.of, number])
    end_ns = pieces["start_ns"] + pieces["duration_ns"]
    table = pieces.select(*_PLACE)[calls.first].assign(
        call=number[calls.first],
        start_ns=calls.min(pieces["start_ns"]),
        end_ns=calls.max(end_ns),
        busy_ns=calls.sum(pieces["self_ns"]),
    )
    return RecordedCalls(ops, table, Table({"row": rows[known], "op": op[known]}))


def _with_ops(trace: Trace, work: Table) -> tuple[Int64s, tuple[int | str, ...]]:
    """For each of `work` the place of what it calls among the second, -1 for none.

    Both halves of a pair are of the site of the first: a call lasts from the start of the one to
    the end of the other, in which a device blocks until the data has come.
    """
    rows = first_halves(trace.table("hlo_ops"), sure_rows(work))
    used = np.unique(rows)
    sites = sites_of(trace, used[used >= 0].tolist(), ranks_by_module(trace))
    ops: list[int | str] = [site.row for site in sites]
    place_of = {row: place for place, row in enumerate(ops)}
    found = np.array([place_of.get(row, -1) for row in used.tolist()], np.int64)
    place = found[np.searchsorted(used, rows)]
    names: Coded = work["name"]
    for code in np.unique(names.codes[rows < 0]).tolist():
        place[(rows < 0) & (names.codes == code)] = len(ops)
        ops.append(names.texts[code])
    return place, tuple(ops)


def first_halves(hlo_ops: Table, rows: Int64s) -> Int64s:
    """`rows` of `HLO_OPS`, where an op that ends work gives way to the one that began it."""
    opcodes, modules, names = (hlo_ops[name] for name in ("opcode", "module", "op"))
    firsts = rows.copy()
    for row in np.unique(rows[rows >= 0]).tolist():
        if not opcodes[row].endswith("-done"):
            continue
        mine = np.flatnonzero(modules == modules[row])
        first = mine[names[mine] == hlo_ops["async_pair"][row]]
        if len(first):
            firsts[rows == row] = first[0]
    return firsts


def ranks_by_module(trace: Trace) -> dict[int, int]:
    """Devices that run each program together; without those of which that is not known.

    The program says it. Where it does not, the devices of the profile are all there are, unless
    the profile lacks some of the run: a process that recorded nothing, a host that was left out.
    """
    modules = trace.table("modules")
    is_told = (modules["partitions"] > 0) & (modules["replicas"] > 0)
    columns = modules[is_told].rows("module", "partitions", "replicas")
    told = {module: partitions * replicas for module, partitions, replicas in columns}
    if is_partial(trace):
        return told
    known = np.unique(trace.table("hlo_ops")["module"]).tolist()
    return {**dict.fromkeys(known, len(trace.table("devices"))), **told}


def _unattributed(name: str) -> Site:
    """A communication kernel or op in no known program: nothing but its name tells what it does."""
    return Site(-1, -1, name, _opcode_of(name), (), NOT_KNOWN, NOT_KNOWN)


def _opcode_of(name: str) -> str:
    """A library's exchange of tokens is no collective: its name tells none."""
    entry = vocabulary.kernel(name)
    if entry is None or entry.library in vocabulary.token_exchanges():
        return "not known"
    is_copy = entry.kind == "permute" and entry.library == "driver"
    return "peer copy" if is_copy else _OPCODES.get(entry.kind, "not known")


def _kernels(names: Coded) -> Int64s:
    """A number for each piece's kernel, whichever algorithm and protocol it was built for.

    A collective calls the same kernel each time; NCCL may take another variant of it.
    """
    plain = Coded.of(_VARIANT.sub("", name) for name in names.texts).codes.astype(np.int64)
    return plain.take(names.codes)


def _call_numbers(places: Groups, kernels: Int64s) -> Int64s:
    """Number of each piece's call, from the place and the kernel of each, in order of time.

    Every call has each kernel at least once: the rarest counts.
    """
    pairs = grouped_columns([places.of, kernels])
    calls = places.size.copy()
    np.minimum.at(calls, places.of[pairs.first], pairs.size)
    before: Int64s = places.place() * spread(calls, places) // spread(places.size, places)
    return before


# Ranks of the devices that replica groups name. Groups count the devices of their program by
# replica · partitions + partition. Which device each of these is, a program says that JAX compiled;
# a mesh may name devices in any order. Where it does not, the numbers are taken for ranks. Where no
# rank is known, one group of all devices needs none.


def with_ranks(trace: Trace, sites: Sequence[Site]) -> list[Site]:
    """`sites` whose groups hold ranks, as `DEVICES` numbers them."""
    ranks = trace.table("devices")["rank"].tolist()
    if ranks and max(ranks) < 0:
        return [replace(site, groups=_of_all(site, ranks)) for site in sites]
    members = _members(trace)
    return [_renamed(site, members.get(site.module, ())) for site in sites]


def ranks_in(trace: Trace, module: int, numbers: Sequence[int]) -> tuple[int, ...]:
    """Ranks of the devices that a program's collectives call by these numbers."""
    members = _members(trace).get(module, ())
    return tuple(members[n] if n < len(members) else n for n in numbers)


def names_of_ranks(trace: Trace) -> dict[int, str]:
    """What each device is called: by its rank, or where that is not known by host and ordinal."""
    return {
        rank: f"rank {rank}" if rank >= 0 else f"{host} device {device}"
        for rank, host, device in trace.table("devices").rows("rank", "host", "device")
    }


def is_partial(trace: Trace) -> bool:
    """Whether devices of the run are known to be missing: a process, or a rank between others."""
    ranks = set(trace.table("devices")["rank"].tolist())
    if trace.meta.missing_processes:
        return True
    if trace.meta.expected_devices:
        return trace.meta.expected_devices > len(ranks)
    return max(ranks, default=0) >= 0 and ranks != set(range(len(ranks)))


def _members(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Ranks by module, in the order of its groups' numbers; of those that say them all."""
    found = {}
    columns = trace.table("modules").rows("module", "ranks", "partitions", "replicas")
    for module, text, partitions, replicas in columns:
        ranks = tuple(int(rank) for rank in text.split(",") if rank)
        if ranks and (min(partitions, replicas) < 1 or len(ranks) == partitions * replicas):
            found[module] = ranks
    return found


def _renamed(site: Site, members: tuple[int, ...]) -> Site:
    if members == tuple(range(len(members))):
        return site
    groups = tuple(
        tuple(members[number] if number < len(members) else number for number in group)
        for group in site.groups
    )
    return replace(site, groups=groups)


def _of_all(site: Site, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The one group of all devices; other groups as they are, of which no device is."""
    is_all = len(site.groups) == 1 and len(site.groups[0]) == len(ranks)
    return (tuple(ranks),) if is_all else site.groups
