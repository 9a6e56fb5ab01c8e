"""Question: which component, phase and source line does each piece of device work have?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.rules import Matches, matches_of, named_by
from moeprof.analyzers.window import busy_ns, spans_of_steps, window
from moeprof.hlo.program import Program
from moeprof.tables.once import once
from moeprof.tables.trace import LOW_CONFIDENCE, Trace
from moeprof.vocabulary import kind_of_kernel

_NONE = {
    "component": "unattributed",
    "phase": "other",
    "evidence": "none",
    "op_kind": "kernel",
    "layer_kind": "outside",
    "source": "",
}


@once
def programs_of(trace: Trace) -> Mapping[int, Program]:
    """The programs that ran, by id; of a compiler's dump, where nothing does, all that it holds.

    Kept for two traces, as several questions ask.
    """
    ran = trace.events if trace.meta.hosts else trace.hlo_ops
    modules = sorted(ran["module"].unique().tolist())
    return {module: trace.programs[module] for module in modules if module in trace.programs}


@once
def rules_matched(trace: Trace) -> Matches:
    """Which of the user's rules match which ops. Kept for two traces.

    Raises:
        SpecError: a rule cannot be used.
    """
    return matches_of(programs_of(trace), trace.meta.names)


@once
def classes_of(trace: Trace) -> pd.DataFrame:
    """`CLASSES` of the programs that ran. Kept for two traces, as several questions ask."""
    return classify(programs_of(trace), named_by(trace.meta.names, rules_matched(trace)))


@once
def work_in_steps(trace: Trace) -> pd.DataFrame:
    """The events of `window(trace)` with the columns of `CLASSES`."""
    return attribute(trace, window(trace).events)


@once
def labels(trace: Trace) -> pd.DataFrame:
    """The columns of `CLASSES` as categories, by row of `hlo_ops`; the last row is for none."""
    rows = trace.hlo_ops[["module", "op"]].merge(classes_of(trace), on=["module", "op"], how="left")
    columns = {
        name: pd.Categorical(pd.concat([rows[name].fillna(none), pd.Series([none], dtype="str")]))
        for name, none in _NONE.items()
    }
    is_collective = np.append(rows["is_collective"].eq(True).to_numpy(), False)
    named = np.append(rows["confidence"].fillna(0.0).to_numpy(), 0.0)
    return pd.DataFrame({**columns, "is_collective": is_collective, "named_with": named})


@once
def sums_in_steps(trace: Trace) -> pd.DataFrame:
    """`work_in_steps` with one row per kernel of an op, device and step: far fewer rows.

    ``self_ns`` is the sum over its pieces, ``pieces`` their count; other columns that differ
    between pieces are those of the first. Kept for two traces, as several questions ask.
    """
    events = window(trace).events
    parts = [
        sure_rows(events),
        is_guess(events).to_numpy(),
        *(events[name].cat.codes.to_numpy() for name in ("op", "name", "kind", "host")),
        *(events[name].to_numpy() for name in ("module", "device", "step")),
    ]
    group = np.zeros(len(events), dtype=np.int64)
    for part in parts:
        codes, found = pd.factorize(part)
        group, _ = pd.factorize(group * max(len(found), 1) + codes)
    groups = int(group.max(initial=-1)) + 1
    first = np.full(groups, len(events), dtype=np.int64)
    np.minimum.at(first, group, np.arange(len(events)))
    # float64 sums of whole numbers are exact below 2**53 ns, 104 days
    sums = np.bincount(group, weights=events["self_ns"].to_numpy(), minlength=groups)
    pieces = np.bincount(group, minlength=groups)
    rows = events.iloc[first].assign(self_ns=sums.astype(np.int64), pieces=pieces)
    return attribute(trace, rows)


@once
def parts_in_steps(trace: Trace) -> pd.DataFrame:
    """`sums_in_steps` with one row per part of the model, device and step."""
    return added(
        sums_in_steps(trace),
        [
            *("layer_kind", "component", "phase", "evidence", "is_collective", "named_with"),
            *("step", "host", "device"),
        ],
    )


@once
def op_sums(trace: Trace) -> pd.DataFrame:
    """`sums_in_steps` with one row per op and kernel over all devices and steps.

    ``op`` is the name for sure, and ``is_known`` whether it is that of an op, not of a kernel.
    """
    work = sums_in_steps(trace)
    is_known = (work["op"] != "") & ~is_guess(work)
    named = work.assign(op=sure_names(work), is_known=is_known)
    return added(
        named,
        [
            *("module", "op", "component", "phase", "evidence", "source", "op_kind", "layer_kind"),
            *("is_known", "name", "named_with"),
        ],
    )


def added(work: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Self time and pieces of `work` by `keys`, in the order in which each comes first."""
    groups = work.groupby(keys, sort=False, observed=True, dropna=False)
    return groups.agg(self_ns=("self_ns", "sum"), pieces=("pieces", "sum")).reset_index()


@dataclass(frozen=True)
class WindowSums:
    """Sums over the work of `window`.

    ``steps`` has the steps with work, in order of it; ``graph_ns`` is in GPU graphs and has no sure
    op, ``moved_ns`` is of copies and memory sets of no known op. ``busy_ns`` is the time in which
    devices did anything.
    """

    steps: tuple[int, ...]
    self_ns: int
    graph_ns: int
    moved_ns: int
    busy_ns: int

    @property
    def graph_share(self) -> float:
        """Share of the self time that ran in GPU graphs and has no sure op."""
        return self.graph_ns / self.self_ns if self.self_ns else 0.0

    def __add__(self, other: WindowSums) -> WindowSums:
        """Over both."""
        return WindowSums(
            tuple(dict.fromkeys((*self.steps, *other.steps))),
            self.self_ns + other.self_ns,
            self.graph_ns + other.graph_ns,
            self.moved_ns + other.moved_ns,
            self.busy_ns + other.busy_ns,
        )


@once
def window_sums(trace: Trace) -> WindowSums:
    """The sums of a trace; busy time is that within the steps, where there are steps."""
    view = window(trace)
    events, self_ns = view.events, view.events["self_ns"]
    is_hidden = is_of_graph(events) & events["confidence"].lt(LOW_CONFIDENCE)
    is_moved = events["kind"].isin(["copy", "memset"]) & (sure_rows(events) < 0)
    spans = spans_of_steps(trace) if view.steps else None
    return WindowSums(
        steps=tuple(events["step"].unique().tolist()),
        self_ns=int(self_ns.sum()),
        graph_ns=int(self_ns[is_hidden].sum()),
        moved_ns=int(self_ns[is_moved].sum()),
        busy_ns=int(busy_ns(events, spans).sum()),
    )


def is_guess(events: pd.DataFrame) -> pd.Series:
    """Whether the op of each piece is named, but not for sure."""
    events = events if isinstance(events, pd.DataFrame) else events.pandas()  # bridge
    return (events["op"] != "") & events["confidence"].between(0, LOW_CONFIDENCE, "neither")


def sure_names(events: pd.DataFrame) -> pd.Series:
    """What each piece is called: its op; its kernel where it has none, or a guessed one."""
    names = events["name"].astype("str")
    return events["op"].astype("str").where((events["op"] != "") & ~is_guess(events), names)


def is_of_graph(events: pd.DataFrame) -> pd.Series:
    """Whether each piece was launched by a command buffer, as a node of a GPU graph."""
    return (
        events["evidence"].eq("graph")
        | events["graph_node"].ne(-1)
        | events["op"].str.startswith("command_buffer")
    )


def sure_rows(events: pd.DataFrame) -> np.ndarray:
    """The row of `HLO_OPS` of each piece, int64; -1 where it has none or a guessed one."""
    events = events if isinstance(events, pd.DataFrame) else events.pandas()  # bridge
    rows: np.ndarray = np.where(is_guess(events), -1, events["instruction"].to_numpy())
    return rows


def is_collective(trace: Trace, events: pd.DataFrame) -> np.ndarray:
    """Whether the op of each piece is a collective: that column of `attribute` alone."""
    found: np.ndarray = labels(trace)["is_collective"].to_numpy().take(sure_rows(events))
    return found


def attribute(trace: Trace, events: pd.DataFrame) -> pd.DataFrame:
    """`events` with the columns of `CLASSES`; work without an HLO op is unattributed.

    Events have a ``confidence`` of their own, in their op: that in its component is
    ``named_with``.

    So is work whose op is a guess; its kernel's name tells the kind of operation. Copies and
    memory sets that the GPU ran outside any op are copies. Text comes as categories.
    """
    classes = labels(trace)
    rows = sure_rows(events)
    found = {str(name): classes[name].array.take(rows) for name in classes}
    is_copy = (rows < 0) & events["kind"].isin(["copy", "memset"]).to_numpy()
    found["component"] = _replaced(found["component"], is_copy, np.full(len(events), "copies"))
    names = events["name"].cat
    by_name = np.array([kind_of_kernel(name) for name in names.categories], dtype=object)
    kinds = by_name.take(names.codes.to_numpy()) if len(events) else by_name
    found["op_kind"] = _replaced(found["op_kind"], rows < 0, kinds)
    return events.assign(**found)


def _replaced(known: pd.Categorical, where: np.ndarray, values: np.ndarray) -> pd.Categorical:
    """`known` with `values` at `where`."""
    wider = known.add_categories(sorted(set(values[where]) - set(known.categories)))
    wider[where] = values[where]
    return wider
