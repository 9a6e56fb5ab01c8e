"""Which replays of graphs are recorded in part.

The same launches are made by each execution of a program, so its k-th replay is compared with the
k-th of its other executions that replay as often. Names of calls tell no graphs apart where the
driver's name is all there is (AMD), and names of kernels change when a graph is recorded anew;
nodes do not.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.ingest.xspace.space import Flags

MOST_IN_PART = 0.5
"""Of replays at one place, the share that may be recorded in part. Where more are smaller than the
largest, that one ran something which is seldom run: a branch of the graph."""


def partial_replays(replays: pd.DataFrame, work: pd.DataFrame) -> Flags:
    """Whether each of `replays` lacks work that others of the same graph brought.

    `replays` have correlation_id, on (device), run_id (-1 where unknown) and start_ns, also those
    that brought nothing: these are in part no replays. `work` has `record.COLUMNS`.
    """
    is_partial = np.zeros(len(replays), bool)
    if replays.empty:
        return is_partial
    pieces = _pieces(replays, work)
    compared = _by_place(replays.reset_index(drop=True), pieces)
    places = [compared[name] for name in ("on", "module", "replays", "place")]
    of_place = compared["pieces"].groupby(places)
    is_less = compared["pieces"] < of_place.transform("max")
    if not is_less.any():
        return is_partial
    is_less &= is_less.groupby(places).transform("mean") <= MOST_IN_PART
    largest = compared["correlation_id"].loc[of_place.transform("idxmax")].to_numpy()
    pairs = pd.DataFrame({"own": compared["correlation_id"], "other": largest})[is_less]
    is_partial[pairs.index[_lacks_any(pairs, pieces)]] = True
    return is_partial


def _pieces(replays: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """What the replays brought: id, module and run_id, and what tells a piece from the others: its
    node, else its name and how many of that name came before it."""
    own = work[work["correlation_id"].isin(replays["correlation_id"]).to_numpy()]
    node, name = own["graph_node"].to_numpy(), own["name"].to_numpy()
    pieces = pd.DataFrame(
        {
            "id": own["correlation_id"].to_numpy(),
            "module": own["module"].to_numpy(),
            "run_id": own["run_id"].to_numpy(),
            "what": np.where(node >= 0, node, name),
        }
    )
    earlier = pieces.groupby(["id", "what"]).cumcount().to_numpy()
    return pieces.assign(nth=np.where(node >= 0, -1, earlier))


def _by_place(replays: pd.DataFrame, pieces: pd.DataFrame) -> pd.DataFrame:
    """Replays with work of a known execution: how many, and in which place there."""
    brought = pieces.groupby("id").agg(
        module=("module", "first"), of_work=("run_id", "first"), pieces=("what", "size")
    )
    told = replays[["correlation_id", "on", "run_id", "start_ns"]]
    found = told.join(brought, on="correlation_id")
    found["run"] = found["run_id"].where(found["run_id"] != -1, found["of_work"].fillna(-1))
    found = found.sort_values("start_ns", kind="stable")
    executions = found.groupby(["on", "run"])["start_ns"]
    found = found.assign(place=executions.cumcount(), replays=executions.transform("size"))
    return found[found["pieces"].notna() & (found["run"] != -1)]


def _lacks_any(pairs: pd.DataFrame, pieces: pd.DataFrame) -> Flags:
    """Whether all that the own replay brought is of the other, and not the other way round."""
    once = pieces.drop_duplicates(["id", "what", "nth"])
    own = pairs.merge(once, left_on="own", right_on="id")
    other = pairs.merge(once, left_on="other", right_on="id")
    both = own.merge(other, on=["own", "what", "nth"])
    sizes = [part.groupby("own").size() for part in (own, other, both)]
    of_own, of_other, of_both = (n.reindex(pairs["own"], fill_value=0).to_numpy() for n in sizes)
    flags: Flags = (of_both == of_own) & (of_own < of_other)
    return flags
