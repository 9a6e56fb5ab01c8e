"""Question: when does each device enter and leave each call of a collective, and which rank is it?

One call may be several pieces of device work: a barrier, the kernel, a barrier; a copy per peer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from moeprof import vocabulary
from moeprof.analyzers.activity.work import COMMUNICATION, classes_of_events
from moeprof.analyzers.attribution import sure_rows
from moeprof.analyzers.communication.sites import NOT_KNOWN, Site, sites_of
from moeprof.analyzers.window import rows_in_window, window
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
_PLACE = ["op", "host", "device", "step"]


@dataclass(frozen=True)
class Calls:
    """`CALLS`, the sites that their ``site`` column counts, and the site of each piece.

    ``site_of`` is indexed by the rows of `EVENTS` that the calls are made of.
    """

    table: pd.DataFrame
    sites: tuple[Site, ...]
    site_of: pd.Series


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
    calls = (
        calls.assign(site=place_of[calls["op"].to_numpy()])
        .astype({"host": "str"})
        .merge(trace.devices[["host", "device", "rank"]], how="left")
        .fillna({"rank": -1})
        .astype({"rank": "int64"})
    )
    order = ["site", "rank", "step", "call"]
    table = CALLS.check(calls.sort_values(order, ignore_index=True))
    site_of = pd.Series(place_of[recorded.op_of.to_numpy()], recorded.op_of.index, name="site")
    return Calls(table, tuple(sites), site_of)


@dataclass(frozen=True)
class RecordedCalls:
    """Calls of the used steps before sites and ranks are known of all hosts.

    ``ops`` are the rows of `HLO_OPS` whose calls they are, in order, then the names of kernels of
    no known op. ``table`` has the columns of `CALLS` with ``op``, a place in these, and ``device``
    for site and rank. ``op_of`` has that place by row of `EVENTS`.
    """

    ops: tuple[int | str, ...]
    table: pd.DataFrame
    op_of: pd.Series


@once
def recorded_calls(trace: Trace) -> RecordedCalls:
    """The calls of each device in the used steps."""
    events = window(trace).events.pandas().set_axis(rows_in_window(trace))  # bridge
    work = events[classes_of_events(trace)[events.index.to_numpy()] == COMMUNICATION]
    placed, ops = _with_ops(trace, work)
    pieces = placed[placed["op"] >= 0].sort_values("start_ns", kind="stable")
    if pieces.empty:
        names = [*_PLACE, "call", "start_ns", "end_ns", "busy_ns"]
        nothing = pd.DataFrame({name: np.zeros(0, np.int64) for name in names})
        return RecordedCalls(ops, nothing, placed["op"].iloc[:0].astype(np.int64))
    places = pieces.groupby(_PLACE, observed=True).ngroup().to_numpy()
    pieces["call"] = _call_numbers(places, _kernels(pieces["name"]))
    pieces["end_ns"] = pieces["start_ns"] + pieces["duration_ns"]
    calls = pieces.groupby([*_PLACE, "call"], observed=True).agg(
        start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), busy_ns=("self_ns", "sum")
    )
    return RecordedCalls(ops, calls.reset_index(), pieces["op"])


def _with_ops(trace: Trace, work: pd.DataFrame) -> tuple[pd.DataFrame, tuple[int | str, ...]]:
    """`work` whose ``op`` is the place of what it calls among the second, -1 for none.

    Both halves of a pair are of the site of the first: a call lasts from the start of the one to
    the end of the other, in which a device blocks until the data has come.
    """
    rows = first_halves(trace.hlo_ops, sure_rows(work))
    sites = sites_of(trace, rows[rows >= 0].tolist(), ranks_by_module(trace))
    ops: list[int | str] = [site.row for site in sites]
    place_of = pd.Series({row: place for place, row in enumerate(ops)}, dtype="int64")
    place = place_of.reindex(rows, fill_value=-1).to_numpy(dtype="int64", copy=True)
    named = work["name"].cat.codes.to_numpy()
    for code in np.unique(named[rows < 0]):
        place[(rows < 0) & (named == code)] = len(ops)
        ops.append(str(work["name"].cat.categories[code]))
    return work.assign(op=place), tuple(ops)


def first_halves(hlo_ops: pd.DataFrame, rows: np.ndarray) -> np.ndarray:
    """`rows` of `HLO_OPS`, where an op that ends work gives way to the one that began it."""
    ends = [row for row in np.unique(rows[rows >= 0]) if _is_end(str(hlo_ops["opcode"].iat[row]))]
    modules = hlo_ops["module"].to_numpy()
    firsts = rows.copy()
    for row in ends:
        is_it = (modules == modules[row]) & hlo_ops["op"].eq(str(hlo_ops["async_pair"].iat[row]))
        first = np.flatnonzero(is_it.to_numpy())
        if len(first):
            firsts[rows == row] = first[0]
    return firsts


def _is_end(opcode: str) -> bool:
    return opcode.endswith("-done")


def ranks_by_module(trace: Trace) -> dict[int, int]:
    """Devices that run each program together; without those of which that is not known.

    The program says it. Where it does not, the devices of the profile are all there are, unless
    the profile lacks some of the run: a process that recorded nothing, a host that was left out.
    """
    devices = trace.modules["partitions"] * trace.modules["replicas"]
    is_told = trace.modules["partitions"].gt(0) & trace.modules["replicas"].gt(0)
    told = dict(zip(trace.modules["module"][is_told], devices[is_told].tolist(), strict=True))
    if is_partial(trace):
        return told
    return {**dict.fromkeys(trace.hlo_ops["module"].unique().tolist(), len(trace.devices)), **told}


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


def _kernels(names: pd.Series) -> np.ndarray:
    """A number for each piece's kernel, int64, whichever algorithm and protocol it was built for.

    A collective calls the same kernel each time; NCCL may take another variant of it.
    """
    plain = [_VARIANT.sub("", name) for name in names.cat.categories]
    numbers: np.ndarray = pd.factorize(np.array(plain, dtype=object))[0].astype("int64")
    return numbers[names.cat.codes.to_numpy()]


def _call_numbers(place: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Number of each piece's call, from the place and the name of each, in order of time.

    Every call has each kernel at least once: the rarest counts.
    """
    total = np.bincount(place)
    pairs, times = np.unique(place * (names.max() + 1) + names, return_counts=True)
    calls = total.copy()
    np.minimum.at(calls, pairs // (names.max() + 1), times)
    order = np.argsort(place, kind="stable")
    firsts = np.cumsum(total) - total
    number = np.empty(len(place), dtype="int64")
    number[order] = np.arange(len(place)) - firsts[place[order]]
    calls_before: np.ndarray = number * calls[place] // total[place]
    return calls_before


# Ranks of the devices that replica groups name. Groups count the devices of their program by
# replica · partitions + partition. Which device each of these is, a program says that JAX compiled;
# a mesh may name devices in any order. Where it does not, the numbers are taken for ranks. Where no
# rank is known, one group of all devices needs none.


def with_ranks(trace: Trace, sites: Sequence[Site]) -> list[Site]:
    """`sites` whose groups hold ranks, as `DEVICES` numbers them."""
    ranks = trace.devices["rank"].tolist()
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
    columns = (trace.devices[name].tolist() for name in ("rank", "host", "device"))
    return {
        rank: f"rank {rank}" if rank >= 0 else f"{host} device {device}"
        for rank, host, device in zip(*columns, strict=True)
    }


def is_partial(trace: Trace) -> bool:
    """Whether devices of the run are known to be missing: a process, or a rank between others."""
    ranks = set(trace.devices["rank"])
    if trace.meta.missing_processes:
        return True
    if trace.meta.expected_devices:
        return trace.meta.expected_devices > len(ranks)
    return max(ranks, default=0) >= 0 and ranks != set(range(len(ranks)))


def _members(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Ranks by module, in the order of its groups' numbers; of those that say them all."""
    found = {}
    names = ("module", "ranks", "partitions", "replicas")
    columns = (trace.modules[name].tolist() for name in names)
    for module, text, partitions, replicas in zip(*columns, strict=True):
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
