"""Question: which component, phase and source line does each piece of device work have?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.rules import Matches, matches_of, named_by
from moeprof.analyzers.window import busy_ns, spans_of_steps, window
from moeprof.columns.coded import Coded, Flags, code_type
from moeprof.columns.grouping import distinct, grouped, grouped_columns, places_in
from moeprof.columns.table import Given, Table, isin, stacked
from moeprof.hlo.program import Program
from moeprof.tables.intervals import Int64s
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
    ran = trace.table("events" if trace.meta.hosts else "hlo_ops")
    modules = distinct(ran["module"]).tolist()
    return {module: trace.programs[module] for module in modules if module in trace.programs}


@once
def rules_matched(trace: Trace) -> Matches:
    """Which of the user's rules match which ops. Kept for two traces.

    Raises:
        SpecError: a rule cannot be used.
    """
    return matches_of(programs_of(trace), trace.meta.names)


@once
def classes_of(trace: Trace) -> Table:
    """`CLASSES` of the programs that ran. Kept for two traces, as several questions ask."""
    return classify(programs_of(trace), named_by(trace.meta.names, rules_matched(trace)))


@once
def work_in_steps(trace: Trace) -> Table:
    """The events of `window(trace)` with the columns of `CLASSES`."""
    return attribute(trace, window(trace).events)


@once
def labels(trace: Trace) -> Table:
    """The columns of `CLASSES`, texts as codes, by row of `hlo_ops`; the last row is for none."""
    ops, classes = trace.table("hlo_ops"), classes_of(trace)
    rows = np.append(places_in(ops, classes, "module", "op"), -1)
    return Table(
        {name: _label([*classes[name].tolist(), none], rows) for name, none in _NONE.items()}
        | {
            "is_collective": np.append(classes["is_collective"], False)[rows],
            "named_with": np.append(classes["confidence"], 0.0)[rows],
        }
    )


def _label(texts: Sequence[str], rows: Int64s) -> Coded:
    """The texts in these rows, codes in the order of the alphabet."""
    known = sorted(set(texts))
    code = {text: place for place, text in enumerate(known)}
    codes = np.fromiter((code[text] for text in texts), code_type(len(known)), len(texts))
    return Coded(codes[rows], known)


@once
def sums_in_steps(trace: Trace) -> Table:
    """`work_in_steps` with one row per kernel of an op, device and step: far fewer rows.

    ``self_ns`` is the sum over its pieces, ``pieces`` their count; other columns that differ
    between pieces are those of the first. Kept for two traces, as several questions ask.
    """
    events = window(trace).events
    parts = (events[n] for n in ("op", "name", "kind", "host", "device", "step", "module"))
    groups = grouped_columns([sure_rows(events), is_guess(events), *parts], is_sorted=False)
    rows = events[groups.first].assign(self_ns=groups.sum(events["self_ns"]), pieces=groups.size)
    return attribute(trace, rows)


_PART = ("layer_kind", "component", "phase", "evidence", "is_collective", "named_with")
_PLACE = ("step", "host", "device")


@once
def parts_in_steps(trace: Trace) -> Table:
    """`work_in_steps` with one row per part of the model, device and step.

    The part of an event is that of its op: the few ops are told apart by their parts, and the
    millions of events by a number.
    """
    events, ops = window(trace).events, labels(trace)
    none = ops[len(ops) - 1 :]
    known = stacked([ops, none.assign(component=_COPIES)]).select(*_PART)
    rows = sure_rows(events)
    rows[rows < 0] = len(ops) - 1
    rows[_are_copies(events, rows == len(ops) - 1)] = len(ops)
    part = grouped(known, *_PART).of[rows]
    groups = grouped_columns([part, *(events[name] for name in _PLACE)], is_sorted=False)
    found = known[rows[groups.first]].beside(events.select(*_PLACE)[groups.first])
    return found.assign(self_ns=groups.sum(events["self_ns"]), pieces=groups.size)


@once
def op_sums(trace: Trace) -> Table:
    """`sums_in_steps` with one row per op and kernel over all devices and steps.

    ``op`` is the name for sure, and ``is_known`` whether it is that of an op, not of a kernel.
    """
    work = sums_in_steps(trace)
    is_known = (work["op"] != "") & ~is_guess(work)
    named = work.assign(op=sure_names(work), is_known=is_known)
    sums = added(
        named,
        [
            *("module", "op", "component", "phase", "evidence", "source", "op_kind", "layer_kind"),
            *("is_known", "name", "named_with"),
        ],
    )
    return sums.assign(op=sums["op"].array())


def added(work: Table, keys: Sequence[str]) -> Table:
    """Self time and pieces of `work` by `keys`, in the order in which each comes first."""
    groups = grouped(work, *keys, is_sorted=False)
    found: Table = work.select(*keys)[groups.first]
    sums = {name: groups.sum(work[name]) for name in ("self_ns", "pieces")}
    return found.assign(**sums)


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
    steps = grouped(events, "step", is_sorted=False).first
    is_hidden = is_of_graph(events) & (events["confidence"] < LOW_CONFIDENCE)
    is_moved = isin(events["kind"], _MOVES) & (sure_rows(events) < 0)
    spans = spans_of_steps(trace) if view.steps else None
    return WindowSums(
        steps=tuple(events["step"][steps].tolist()),
        self_ns=int(self_ns.sum()),
        graph_ns=int(self_ns[is_hidden].sum()),
        moved_ns=int(self_ns[is_moved].sum()),
        busy_ns=int(busy_ns(events, spans)["busy_ns"].sum()),
    )


_COPIES = "copies"
"""Component of what the GPU moved outside of any op."""
_MOVES = ("copy", "memset")


def is_guess(events: Given) -> Flags:
    """Whether the op of each piece is named, but not for sure."""
    events = Table.of(events)
    confidence = events["confidence"]
    found: Flags = (events["op"] != "") & (confidence > 0) & (confidence < LOW_CONFIDENCE)
    return found


def sure_names(events: Given) -> Coded:
    """What each piece is called: its op; its kernel where it has none, or a guessed one."""
    events = Table.of(events)
    ops, is_unknown = events["op"], (events["op"] == "") | is_guess(events)
    found: Coded = ops.replaced(is_unknown, events["name"][is_unknown])
    return found


def is_of_graph(events: Given) -> Flags:
    """Whether each piece was launched by a command buffer, as a node of a GPU graph."""
    events = Table.of(events)
    found: Flags = (
        (events["evidence"] == "graph")
        | (events["graph_node"] != -1)
        | events["op"].that(lambda op: op.startswith("command_buffer"))
    )
    return found


def sure_rows(events: Given) -> Int64s:
    """The row of `HLO_OPS` of each piece, int64; -1 where it has none or a guessed one."""
    events = Table.of(events)
    return np.where(is_guess(events), -1, events["instruction"])


def is_collective(trace: Trace, events: Given) -> Flags:
    """Whether the op of each piece is a collective: that column of `attribute` alone."""
    found: Flags = labels(trace)["is_collective"].take(sure_rows(events))
    return found


def attribute(trace: Trace, events: Given) -> Table:
    """`events` with the columns of `CLASSES`; work without an HLO op is unattributed.

    Events have a ``confidence`` of their own, in their op: that in its component is
    ``named_with``.

    So is work whose op is a guess; its kernel's name tells the kind of operation. Copies and
    memory sets that the GPU ran outside any op are copies. Text comes as codes.
    """
    events = Table.of(events)
    rows = sure_rows(events)
    found = labels(trace)[rows]
    is_unknown = rows < 0
    return events.beside(found).assign(
        component=found["component"].replaced(_are_copies(events, is_unknown), _COPIES),
        op_kind=found["op_kind"].replaced(is_unknown, _kinds(events["name"][is_unknown])),
    )


def _are_copies(events: Table, is_unknown: Flags) -> Flags:
    """Whether each event moves memory outside of any op."""
    return is_unknown & isin(events["kind"], _MOVES)


def _kinds(names: Coded) -> Coded:
    """The kind of each of these kernels; new ones come in the order of the alphabet."""
    used = np.unique(names.codes)
    kinds = [kind_of_kernel(names.texts[code]) for code in used.tolist()]
    return _label(kinds, np.searchsorted(used, names.codes))
