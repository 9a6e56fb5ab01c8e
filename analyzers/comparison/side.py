"""Question: what did each op of a run cost, in terms that another run of the model has too?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.work import COMMUNICATION, COMPUTE, work_classes
from moeprof.analyzers.attribution import programs_of, sure_rows, work_in_steps
from moeprof.analyzers.communication.calls import calls_of, first_halves
from moeprof.analyzers.communication.sites import Site
from moeprof.analyzers.communication.waits import waits_of
from moeprof.analyzers.comparison.alignment import SIGNATURES, kernel_family, role_of, signatures
from moeprof.analyzers.window import window
from moeprof.tables.intervals import apart, cover
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SIDE_OPS = Schema(
    "side_ops",
    (
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        *(column for column in SIGNATURES.columns if column.name not in ("row", "opcode")),
        Column("family", "text", "", "kernel without numbers; empty for ops of a CPU or TPU"),
        Column("ns", "int64", "ns", "self time, all devices and used steps together"),
        Column("calls", "int64", "count", "runs, all devices and used steps together"),
        Column("exposed_ns", "int64", "ns", "of collectives, what no compute hides"),
        Column("wait_ns", "float64", "ns", "of it, until the last device came; NaN unknown"),
        Column("is_exchange", "bool", "", "whether it moves data between devices"),
    ),
)
_LABELS = ["scope", "op", "shape", "operand_shapes", "role"]


@dataclass(frozen=True)
class Side:
    """The ops of one run.

    ``ops`` are rows of `SIDE_OPS`; ``samples`` is [ops, steps], float64 ns: what each op took in
    each used step, mean over devices. ``shares`` are device-steps: what sums are divided by.
    """

    ops: pd.DataFrame
    samples: np.ndarray
    shares: int


def side_of(trace: Trace) -> Side:
    """Ops of the used steps; of the whole capture where there is none."""
    view, work = window(trace), work_in_steps(trace).pandas()
    classes = work_classes(trace, view.events)
    is_sent = classes == COMMUNICATION
    rows = sure_rows(work)
    rows = np.where(is_sent, first_halves(trace.table("hlo_ops"), rows), rows)
    signed, place = _signed(trace, work, rows)
    keyed = work[["component", "phase", "kind", "self_ns"]].assign(
        signature=place, row=rows, is_exchange=is_sent, exposed_ns=exposed_ns(work, classes)
    )
    groups = keyed.groupby(["component", "phase", "signature"], observed=True, sort=True)
    keyed["key"] = groups.ngroup()
    ops = groups.agg(
        ns=("self_ns", "sum"),
        calls=("self_ns", "size"),
        exposed_ns=("exposed_ns", "sum"),
        is_exchange=("is_exchange", "any"),
    ).reset_index()
    ops = ops.astype({"component": "str", "phase": "str"}).join(signed, on="signature")
    ops["family"] = _families(keyed["key"], work["name"], work["kind"], len(ops))
    ops["wait_ns"] = _waits_ns(trace, keyed, work["name"], ops)
    samples = _samples(keyed["key"], work["step"], ops, max(view.devices, 1), keyed["self_ns"])
    return Side(SIDE_OPS.check(ops), samples, view.shares)


def _signed(trace: Trace, work: pd.DataFrame, rows: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """Different signatures, and the place of each event's among them.

    Work without an op is known by its kernel alone.
    """
    used = np.unique(rows[rows >= 0])
    modules = trace.hlo_ops["module"]
    parts = []
    for module, program in programs_of(trace).items():
        mine = used[(modules.to_numpy()[used] == module)]
        if len(mine):
            parts.append(signatures(program, trace.hlo_ops, mine.tolist()))
    known = pd.concat([SIGNATURES.frame(), *parts], ignore_index=True)
    of_row = pd.Series(np.arange(len(known)), index=known["row"].to_numpy(), dtype="int64")
    names = work["name"].cat.categories
    nameless = [_by_kernel(str(name)) for name in names]
    listed = pd.concat(
        [known[_LABELS], pd.DataFrame(nameless, columns=_LABELS)], ignore_index=True
    ).astype("str")
    codes = listed.groupby(_LABELS, sort=True).ngroup().to_numpy()
    distinct = listed.assign(code=codes).drop_duplicates("code").set_index("code").sort_index()
    kernels = len(known) + work["name"].cat.codes.to_numpy().astype(np.int64)
    entry = np.where(rows >= 0, of_row.reindex(rows, fill_value=0).to_numpy(), kernels)
    return distinct, codes[entry] if len(codes) else np.zeros(0, np.int64)


def _by_kernel(name: str) -> tuple[str, str, str, str, str]:
    family = kernel_family(name)
    return ("", family, "", "", role_of(family, ""))


def _families(keys: pd.Series, names: pd.Series, kinds: pd.Series, ops: int) -> np.ndarray:
    """Family of the first kernel of each op; none where events are ops, named like their HLO."""
    families = np.array([*(kernel_family(str(n)) for n in names.cat.categories), ""], dtype=object)
    codes = np.where(kinds.eq("op"), -1, names.cat.codes)
    first = pd.Series(codes, index=keys.to_numpy()).groupby(level=0).first()
    found: np.ndarray = families[first.reindex(range(ops), fill_value=-1).to_numpy()]
    return found


def _waits_ns(trace: Trace, keyed: pd.DataFrame, names: pd.Series, ops: pd.DataFrame) -> np.ndarray:
    """What devices waited in each op, at most what it took; 0 where it is no exchange."""
    calls = calls_of(trace)
    waits = waits_of(calls, trace.meta).pandas()
    waited = waits["wait_ns"].clip(upper=waits["busy_ns"])
    by_site = waited.groupby(waits["site"]).agg(lambda known: known.sum(skipna=False))
    is_sent = keyed["is_exchange"]
    sent = keyed[is_sent].assign(name=names[is_sent].astype("str"))
    of_row = sent.drop_duplicates("row").set_index("row")["key"]
    of_name = sent[sent["row"] < 0].drop_duplicates("name").set_index("name")["key"]
    found = np.where(ops["is_exchange"], np.nan, 0.0)
    sites = by_site.index.tolist()
    keys = {site: _key(calls.sites[site], of_row, of_name) for site in sites}
    sums = by_site.groupby(pd.Series(keys, dtype="int64")).agg(
        lambda known: known.sum(skipna=False)
    )
    found[sums.index] = np.minimum(sums.to_numpy(), ops["ns"].to_numpy()[sums.index])
    return found


def _key(site: Site, of_row: pd.Series, of_name: pd.Series) -> int:
    return int(str(of_row.at[site.row] if site.row >= 0 else of_name.at[site.op]))


def _samples(
    keys: pd.Series, steps: pd.Series, ops: pd.DataFrame, devices: int, ns: pd.Series
) -> np.ndarray:
    """[ops, steps] ns per device."""
    place, found = pd.factorize(steps, sort=True)
    sums = np.zeros((len(ops), len(found)))
    np.add.at(sums, (keys.to_numpy(), place), ns.to_numpy())
    return sums / devices


def exposed_ns(events: pd.DataFrame, work: np.ndarray) -> np.ndarray:
    """Of each piece of communication the time in which its device computes nothing, int64 ns.

    0 for other work. Two pieces that lie in one exposed moment both count it: these are times of
    ops, which the timeline's exposed communication counts once.

    Args:
        events: rows of `EVENTS`.
        work: class of each, of `work_classes`.
    """
    places = events.groupby(["host", "device"], sort=False, observed=True)
    group = places.ngroup().to_numpy().astype(np.int64)
    start = events["start_ns"].to_numpy()
    end = start + events["duration_ns"].to_numpy()
    shift = apart(group, start, end)
    is_compute, is_sent = work == COMPUTE, work == COMMUNICATION
    computed = cover((start + shift)[is_compute], (end + shift)[is_compute])
    exposed = np.zeros(len(events), np.int64)
    first, last = (start + shift)[is_sent], (end + shift)[is_sent]
    hidden = computed.until(last) - computed.until(first)
    exposed[is_sent] = last - first - hidden
    return exposed
