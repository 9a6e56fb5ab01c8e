"""Question: from when to when does each host work on a step, and what runs meanwhile?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.tables.trace import Trace, once
from moeprof.tables.waits import work_of

_KEYS = ["host", "step"]


def step_spans(trace: Trace) -> pd.DataFrame:
    """Rows (host, step, start_ns, end_ns) of the used steps, by host and start.

    On one host these are the steps themselves. Of several, each takes its own share of the step
    by its own clock: first start to last end of its executions, else of its events. Without a
    used step each host has one row, step -1, over all its work.
    """
    used = trace.steps[trace.steps["used"]]
    if len(used) and len(trace.meta.hosts) == 1:
        spans = pd.DataFrame({"host": trace.meta.hosts[0], "step": used["step"].to_numpy()})
        spans["start_ns"] = used["start_ns"].to_numpy()
        spans["end_ns"] = spans["start_ns"] + used["duration_ns"].to_numpy()
        return spans.sort_values(["host", "start_ns"], ignore_index=True)
    for work in (trace.executions, work_of(trace.events)):
        inside = work[work["step"].isin(used["step"])]
        if len(inside):
            return _hulls(inside)
    return _hulls(work_of(trace.events).assign(step=-1))


@once
def places_of(trace: Trace) -> tuple[np.ndarray, pd.DataFrame]:
    """For each event the number of its device, and the rows (place, host, device, rank) of these.

    A device without work has no row; its rank is -1 where `trace.devices` does not know it.
    """
    hosts, devices = trace.events["host"].cat, trace.events["device"].to_numpy()
    wide = int(devices.max(initial=0)) + 2  # device -1 is one too
    of_host = hosts.codes.to_numpy().astype(np.int64)  # few hosts have codes of 8 bits
    codes, place = np.unique(of_host * wide + devices + 1, return_inverse=True)
    places = pd.DataFrame(
        {
            "place": np.arange(len(codes)),
            "host": np.asarray(hosts.categories, dtype=object)[codes // wide],
            "device": codes % wide - 1,
        }
    ).astype({"host": "str"})
    found = places.merge(trace.devices[["host", "device", "rank"]], how="left")
    return place, found.fillna({"rank": -1}).astype({"rank": "int64"})


def _hulls(work: pd.DataFrame) -> pd.DataFrame:
    timed = work[["host", "step", "start_ns"]].assign(
        host=work["host"].astype("str"), end_ns=work["start_ns"] + work["duration_ns"]
    )
    spans = timed.groupby(_KEYS).agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    return spans.reset_index().sort_values(["host", "start_ns"], ignore_index=True)


def joined(spans: pd.DataFrame, events: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (row of `events`, row of `spans`) that share a host and some time.

    A step counts what its devices do while it lasts, whichever step the work belongs to: a device
    is idle only when it does nothing.
    """
    rows: list[np.ndarray] = []
    matches: list[np.ndarray] = []
    for host, part in spans.groupby("host", sort=False):
        mine = np.flatnonzero((events["host"] == host).to_numpy())
        start = events["start_ns"].to_numpy()[mine]
        end = start + events["duration_ns"].to_numpy()[mine]
        begins, ends = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        # spans may overlap: all before `first` have ended by the start, all from `last` begin later
        first = np.searchsorted(np.maximum.accumulate(ends), start, side="left")
        last = np.searchsorted(begins, end, side="right")
        count = np.maximum(last - first, 0)
        place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        rows.append(np.repeat(mine, count))
        matches.append(part.index.to_numpy()[np.repeat(first, count) + place])
    none = np.zeros(0, dtype="int64")
    return np.concatenate([none, *rows]), np.concatenate([none, *matches])
