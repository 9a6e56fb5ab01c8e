"""Question: what do the token exchanges of the MoE layers cost, and how fast are they?

Returns: one row per call site of the dispatch or the way back, the most expensive first.

Work on the device around an exchange (sorting, scatter, conversion) is not counted here.
An exchange is any collective or custom call that sends tokens to the ranks of their experts, brings
them back, or tells the ranks how many will come. The gradient of a dispatch is a way back in the
other direction: it stands under its own part of the layer, phase backward.

Bandwidths are those of nccl-tests (doc/PERFORMANCE.md): S by the median transfer once the last
rank has come, times (n−1)/n, which holds where tokens spread evenly over the ranks. S is what was
really used, rows × width × dtype, where the run recorded it; else what the program sends, if that
does not depend on the data. GB are 10**9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moeprof.analyzers.activity.account import exposed_ns
from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.buffers import BufferUse, Counts, filled, uses_of
from moeprof.analyzers.communication.bandwidth import bus_factor, gb_per_s, links_of
from moeprof.analyzers.communication.calls import Calls, calls_of, recorded_calls
from moeprof.analyzers.communication.sites import NOT_KNOWN, Site
from moeprof.analyzers.communication.waits import clock_notes, transfers_of, waits_in_steps
from moeprof.analyzers.question import Group, Question
from moeprof.analyzers.window import PER_STEP, Window, window
from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import written
from moeprof.columns.grouping import places_in
from moeprof.columns.table import Table, isin
from moeprof.hlo.shape import arrays_of
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes
from moeprof.vocabulary import direction_of

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = Schema(
    "dispatch_combine",
    (
        Column("direction", "text", "", "dispatch or combine; not known without a program"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column(
            "form",
            "text",
            "",
            "how tokens, or integers that tell of them (counts, ids), are exchanged",
        ),
        Column("per_step_ns", "float64", "ns", f"self time, waits included, {PER_STEP}"),
        Column("exposed_ns", "float64", "ns", f"not hidden by compute, {PER_STEP}", "exposed"),
        Column("wait_ns", "float64", "ns", f"of it, until the last rank came, {PER_STEP}"),
        Column(
            "bus_gb_per_s",
            "float64",
            "GB/s",
            "bus bandwidth of the median transfer: of used bytes where recorded, else of all sent",
            "token bus GB/s",
        ),
        Column("transfer_ns", "float64", "ns", "median call, once the last rank has come"),
        Column("calls", "float64", "count", f"calls, {PER_STEP}"),
        Column("bytes", "float64", "bytes", "what the program sends, by its shapes, per device"),
        Column("used_bytes", "float64", "bytes", "of it tokens, mean of the recorded routing"),
        Column("bound_bytes", "float64", "bytes", "the most that a device can send or receive"),
        Column(
            "algorithm_gb_per_s",
            "float64",
            "GB/s",
            "S by the median transfer; S is used bytes where recorded, else all that is sent",
            "token algorithm GB/s",
        ),
        Column("link_share", "float64", "share", "bus bandwidth of what the link can do"),
        Column("skew_ns", "float64", "ns", "mean call, first to last rank's start"),
        Column("last_rank", "int64", "", "who comes last most often; -1 where unknown"),
        Column("last_share", "float64", "share", "calls in which it comes last"),
        Column("group_size", "int64", "", "ranks in a group; 0 where unknown"),
        Column("op", "text", "", "HLO instruction; a kernel's name where that is not known"),
        Column("module", "int64", "", "program id; -1 where unknown"),
    ),
)
_PLACE = ("module", "op")
ASKS = "What do dispatch and combine cost, and how fast are they?"
NONE = "none in this trace: no token exchange of a MoE layer"
_FORMS = {
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "ragged all-to-all",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "collective-permute": "permute",
    "custom-call": "custom call",
}
_NO_DIRECTION = "not known"
_RAGGED = "ragged-all-to-all"


@once  # hints ask again
def dispatch_combine(trace: Trace, link_bytes_per_s: float | None = None) -> Analysis:
    """Token exchanges of the used steps by call site.

    Args:
        trace: the profile.
        link_bytes_per_s: what a device can send to its peers in one direction; by default what
            the vendor states for the device's model, where that is known.
    """
    view = window(trace)
    calls = calls_of(trace)
    exchanges = _exchanges(trace, calls)
    if not exchanges:
        return nothing("dispatch_combine", ASKS, SCHEMA, NONE, *view.notes, headline=_NO_FIGURES)
    import pandas as pd

    sites = pd.DataFrame(exchanges).set_index("place")
    waits = waits_in_steps(trace)
    waits = waits[isin(waits["site"], sites.index.tolist())]
    links = links_of(trace, calls.sites, link_bytes_per_s)
    table, notes = _with_bytes(_timed(trace, sites, calls, waits, view), trace)
    table["link_share"] = table["bus_gb_per_s"] / links[table.index.to_numpy()]
    table = table.sort_values(["per_step_ns", "op"], ascending=[False, True], ignore_index=True)
    schema = view.stated(SCHEMA)
    table = schema.frame({name: table[name].to_numpy() for name in schema.names})
    said = (
        *_bounds(table),
        *_of_tokens(table),
        *clock_notes(trace, waits),
        *notes,
        *_platform(trace),
        *view.notes,
    )
    return Analysis("dispatch_combine", ASKS, _headline(table), schema, table, said)


_SITES = Schema("sites", tuple(column for column in SCHEMA.columns if column.name in _PLACE))
_NO_FIGURES = (Metric("exchange_time", None, "ns"), Metric("call_sites", 0, "count"))


def _exchanges(trace: Trace, calls: Calls) -> list[dict[str, Any]]:
    """The sites that dispatch or combine, with their place and what their op says."""
    classes, shapes = classes_of(trace), trace.table("hlo_ops")["shape"]
    ops = [(site.module, site.op) for site in calls.sites]
    sites = _SITES.table({"module": [module for module, _ in ops], "op": [op for _, op in ops]})
    class_of = places_in(sites, classes, "module", "op").tolist()
    rows = []
    for place in np.unique(calls.table["site"]).tolist():
        site, row = calls.sites[place], class_of[place]
        named = direction_of(site.op) if site.row < 0 else ""
        direction = classes["component"][row] if row >= 0 else named
        if direction not in ("dispatch", "combine"):
            if site.opcode != _RAGGED:
                continue
            direction = _NO_DIRECTION  # yet rows of varying number are tokens
        shape = shapes[site.row] if site.row >= 0 else ""
        arrays = arrays_of(shape)
        carries = any(a.is_float for a in arrays) or not any(a.is_whole for a in arrays)
        rows.append(
            {
                "place": place,
                "direction": direction,
                "phase": classes["phase"][row] if row >= 0 else "other",
                "form": _form(site, carries=carries),
                "is_tokens": carries,
                "op": site.op,
                "module": site.module,
                "group_size": site.group_size,
                "bytes": float(site.bytes) if site.bytes != NOT_KNOWN else np.nan,
                "bound_bytes": float(site.bytes_bound) if site.bytes_bound >= 0 else np.nan,
                "factor": bus_factor(site.opcode, site.group_size) if site.group_size else np.nan,
            }
        )
    return rows


def _form(site: Site, *, carries: bool) -> str:
    form = "kernel only" if site.row < 0 else _FORMS.get(site.opcode, site.opcode)
    return form if carries else f"{form} of integers"


def _timed(
    trace: Trace, sites: pd.DataFrame, calls: Calls, table: Table, view: Window
) -> pd.DataFrame:
    known, waits = transfers_of(table, calls.sites, trace.meta).pandas(), table.pandas()
    by_site = waits.groupby("site")
    starts = waits[waits["wait_ns"].notna()].groupby(["site", "step", "group", "call"])
    last = waits[waits["last_rank"] >= 0]
    ends = last.drop_duplicates(["site", "step", "group", "call"]).groupby("site")["last_rank"]
    often = ends.agg(lambda ranks: ranks.value_counts(sort=True).index[0])
    share = ends.agg(lambda ranks: ranks.value_counts(normalize=True).iloc[0])
    return sites.assign(
        per_step_ns=by_site["busy_ns"].sum() / view.shares,
        exposed_ns=_exposed_by_site(trace, calls) / view.shares,
        wait_ns=by_site["wait_ns"].sum(min_count=1) / view.shares,
        calls=by_site.size() / view.shares,
        transfer_ns=known.groupby("site")["transfer_ns"].median(),
        skew_ns=starts["wait_ns"].max().groupby("site").mean(),
        last_rank=often.reindex(sites.index).fillna(-1).astype("int64"),
        last_share=share,
    )


@once
def exposed_by_op(trace: Trace) -> pd.Series:
    """Time of the calls of each op that no compute hides, in ns, by what `recorded_calls` has."""
    import pandas as pd

    calls = recorded_calls(trace)
    op_of = calls.op_of.pandas()
    exposed = pd.Series(exposed_ns(trace)[op_of["row"]])
    sums = exposed.groupby(op_of["op"]).sum()
    return pd.Series(sums.to_numpy(), [calls.ops[place] for place in sums.index], dtype="int64")


def _exposed_by_site(trace: Trace, calls: Calls) -> pd.Series:
    """That time by place of the site."""
    import pandas as pd

    of_op = exposed_by_op(trace).to_dict()
    keys = [site.op if site.row < 0 else site.row for site in calls.sites]
    return pd.Series([float(of_op.get(key, 0)) for key in keys], dtype="float64")


def _with_bytes(table: pd.DataFrame, trace: Trace) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Sizes of custom calls by their buffers, used bytes by the recorded routing, bandwidths."""
    import pandas as pd

    uses = {
        (use.module, use.op): use
        for use in uses_of(trace)
        if use.role in ("dispatch", "combine", "exchange")
    }
    counts, notes = filled(trace)
    mine = [uses.get(key) for key in zip(table["module"], table["op"], strict=True)]
    is_tokens = table["is_tokens"].tolist()
    used = [
        _used_bytes(use, counts.rows) if t else np.nan
        for use, t in zip(mine, is_tokens, strict=True)
    ]
    held = [float(use.size_bytes) if use is not None else np.nan for use in mine]
    table = table.assign(
        used_bytes=used, bound_bytes=table["bound_bytes"].fillna(pd.Series(held, index=table.index))
    )
    sent = table["used_bytes"].fillna(table["bytes"])
    algorithm = gb_per_s(sent.to_numpy(), table["transfer_ns"].to_numpy())
    return table.assign(algorithm_gb_per_s=algorithm, bus_gb_per_s=algorithm * table["factor"]), (
        notes
    )


def _used_bytes(use: BufferUse | None, rows: Counts) -> float:
    """Mean bytes of tokens that a device receives in a call; over all ranks also what it sends."""
    if use is None or not use.rows or not rows.fit(use):
        return np.nan
    return float(rows.values.mean()) * use.size_bytes / use.rows


def _headline(table: pd.DataFrame) -> tuple[Metric, ...]:
    import pandas as pd

    whole, wait = float(table["per_step_ns"].sum()), table["wait_ns"].sum(min_count=1)
    is_tokens = ~table["form"].str.endswith("of integers")
    speeds = table["bus_gb_per_s"][is_tokens].dropna()
    by_direction = table.groupby("direction")["per_step_ns"].sum()
    are_told = _NO_DIRECTION not in by_direction  # else each way may take more than is known
    return (
        Metric("exchange_time", whole, "ns"),
        *(
            Metric(f"{way}_time", float(by_direction.get(way, 0.0)) if are_told else None, "ns")
            for way in ("dispatch", "combine")
        ),
        Metric("exposed_exchange_time", float(table["exposed_ns"].sum()), "ns"),
        Metric(
            "exchange_wait_share",
            float(wait) / whole if whole and pd.notna(wait) else None,
            "share",
        ),
        Metric("worst_bus_bandwidth", float(speeds.min()) if len(speeds) else None, "GB/s"),
        Metric("best_bus_bandwidth", float(speeds.max()) if len(speeds) else None, "GB/s"),
    )


_MOST_NAMED = 3


def _bounds(table: pd.DataFrame) -> list[str]:
    """Exchanges whose bytes nothing tells: how many at most, and what the speed is at most."""
    unknown = table[table["bytes"].isna() & table["used_bytes"].isna()]
    said = []
    for row in unknown.head(_MOST_NAMED).itertuples():
        bound = float(str(row.bound_bytes))
        limit = "no upper bound known"
        if bound > 0:
            limit = f"upper bound {format_bytes(bound)}"
            speed = bound / float(str(row.transfer_ns)) if float(str(row.transfer_ns)) else np.nan
            limit += f", at most {speed:.1f} GB/s by the algorithm" if speed == speed else ""
        said.append(f"{row.op}: bytes unknown (data dependent), {limit}")
    if len(unknown) > _MOST_NAMED:
        said.append(f"the same holds for {len(unknown) - _MOST_NAMED} more exchanges")
    return said


def _of_tokens(table: pd.DataFrame) -> tuple[str, ...]:
    """Why the bandwidth of an exchange differs from that of the same op among the collectives."""
    if not (table["used_bytes"] < table["bytes"]).any():
        return ()
    return (
        "bandwidths count the rows that held tokens; those of collectives count all that is sent, "
        "empty rows too",
    )


def _platform(trace: Trace) -> tuple[str, ...]:
    if trace.meta.platform != "cpu":
        return ()
    return (
        "token exchanges of virtual CPU devices copy within memory: their bandwidth says "
        "nothing about a link",
    )


def sentence(document: Document) -> str:
    """Time of both, how much of it is exposed, how much is waiting for others."""
    found = headline(document, "dispatch_combine")
    if found.get("exchange_time") is None:
        return ""
    time = {name: written(value, "ns") for name, value in found.items() if name.endswith("_time")}
    told = (
        f"Dispatch and combine take {time['exchange_time']} {basis(document)}, "
        f"{time['exposed_exchange_time']} of it exposed"
    )
    waiting = found["exchange_wait_share"]
    if waiting is None:
        return f"{told}; how much of it is waiting for other devices is not known."
    return f"{told}; {written(waiting, 'share')} is waiting for other devices."


QUESTION = Question(
    title="Dispatch and combine",
    group=Group.COMMUNICATION,
    place=1,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.RECEIVED}),
    schema=SCHEMA,
    run=dispatch_combine,
    sentence=sentence,
)
