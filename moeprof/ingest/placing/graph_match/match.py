"""Question: which op does device work belong to whose record names none?

XLA turns stretches of the schedule into GPU graphs (command buffers). Their kernels are recorded
under the graph's name, not the instruction's. Here launches are aligned with the schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moeprof.columns.coded import Coded
from moeprof.columns.grouping import distinct, grouped_columns
from moeprof.columns.table import Column, Table
from moeprof.hlo.program import Program
from moeprof.ingest.placing.graph_match.anchors import read_names
from moeprof.ingest.placing.graph_match.launches import (
    NO_LABEL,
    Launches,
    Work,
    find_bounds,
    find_launches,
    find_shapes,
    local_nodes,
)
from moeprof.ingest.placing.graph_match.schedule import Schedule, read_schedule
from moeprof.ingest.placing.graph_match.solve import ENCLOSED, NOT_FOUND, Answer, Shared, solve
from moeprof.ingest.planes.record import Labels
from moeprof.tables.trace import LOW_CONFIDENCE

Ints = npt.NDArray[np.int64]

_ROUNDS = 2


def match_graphs(work: Table, program: Program) -> Table:
    """Find the ops of device work whose recorded op is no instruction of the module.

    Args:
        work: device work of one module on one host. Columns: device, run_id, correlation_id,
            graph_node, start_ns (int64; -1 for an id that is not known), line, name, kind (copy,
            memset or kernel) and op (texts, coded or not; empty where none is recorded).
        program: that of the module; without instructions where it was not kept. Without the
            order of its instructions only names tell, and what order tells is a guess.

    Returns:
        One row per row of `work`: ``op`` (coded text, empty where none was found),
        ``confidence`` (float64 in [0, 1], levels in `solve`) and ``evidence`` (coded: "graph"
        where an op was found, else empty). Rows that have an op of the module get none.
    """
    slots, confidence = np.full(len(work), -1, np.int64), np.zeros(len(work))
    labels = _codes(work["op"])
    known_ops = program.ops.keys()
    is_settled = known_ops >= set(labels[1])
    schedule = read_schedule(Program(()) if is_settled else program)
    if schedule.ops:
        order = np.argsort(work["start_ns"], kind="stable")
        answer = _match(*_coded(work, order, labels, schedule, known_ops))
        slots[order], confidence[order] = answer.slots, answer.confidence
    return Table(
        {
            "op": Coded(slots + 1, ["", *schedule.ops]),
            "confidence": confidence,
            "evidence": Coded((slots >= 0).astype(np.int8), ["", "graph"]),
        }
    )


def _match(work: Work, shared: Shared) -> Answer:
    """Slot and confidence of the rows to be found, by row of `work`; -1 and 0 for the others."""
    launches = find_launches(work)
    answer = Answer(np.full(len(work.lines), -1, np.int64), np.zeros(len(work.lines)))
    for _ in range(_ROUNDS):
        if answer.confidence[work.is_open].min() >= ENCLOSED:
            break
        # What is sure bounds the launches beside it, so that the second round may know more.
        sure = np.where(answer.confidence >= LOW_CONFIDENCE, answer.slots, work.known)
        answer = _improved(work, shared, launches, sure, answer)
    is_found = work.is_open & (answer.slots >= 0)
    return Answer(
        np.where(is_found, answer.slots, -1), np.where(is_found, answer.confidence, NOT_FOUND)
    )


def _improved(work: Work, shared: Shared, launches: Launches, sure: Ints, before: Answer) -> Answer:
    """Match every shape of launch once, unless it is settled, and give its launches the answer."""
    bounds = find_bounds(work, launches, sure, count=len(shared.schedule.ops))
    slots, confidence = before.slots.copy(), before.confidence.copy()
    wholes = Wholes()
    for shape in find_shapes(work, launches, bounds):
        kernels = shape.members[0]
        names, nodes = work.names[kernels], work.nodes[kernels]
        if before.confidence[kernels].min() >= ENCLOSED:
            wholes.keep(shape.label, nodes, names, before.of(kernels))
            continue
        answer = wholes.part(shape.label, nodes, names)
        if answer is None:
            answer = solve(shared, names, work.known[kernels], shape.bounds)
            wholes.keep(shape.label, nodes, names, answer)
        slots[shape.members] = answer.slots
        confidence[shape.members] = answer.confidence
    return Answer(slots, confidence)


def _coded(
    work: Table,
    order: Ints,
    labels: tuple[Ints, list[str]],
    schedule: Schedule,
    known_ops: Collection[str],
) -> tuple[Work, Shared]:
    """The columns of `work`, in `order`, as numbers, and what the names among them say."""
    label_codes, ops = labels[0][order], labels[1]
    kinds, kind_values = _codes(work["kind"])
    names, name_values = _codes(work["name"])
    streams, _ = _codes(work["line"])
    alike = grouped_columns([names, kinds], is_sorted=False)
    devices = work["device"]
    slots = np.array([schedule.slot_of_op.get(op, -1) for op in ops], np.int64)
    own = np.array([NO_LABEL if op == "" else code for code, op in enumerate(ops)], np.int64)
    coded = Work(
        devices=devices[order],
        lines=grouped_columns([devices, streams], is_sorted=False).of[order],
        names=alike.of[order],
        labels=own[label_codes],
        runs=work["run_id"][order],
        correlations=work["correlation_id"][order],
        nodes=local_nodes(work["graph_node"][order]),
        known=slots[label_codes],
        is_open=np.array([op not in known_ops for op in ops], np.bool_)[label_codes],
    )
    ran_alone = np.zeros(len(schedule.ops), np.bool_)
    ran_alone[slots[slots >= 0]] = True
    distinct = read_names(
        [name_values[name] for name in names[alike.first].tolist()],
        [kind_values[kind] for kind in kinds[alike.first].tolist()],
        schedule,
    )
    return coded, Shared(schedule, distinct, ran_alone)


def _codes(column: Column) -> tuple[Ints, list[str]]:
    """A code per row, in order of first use, and the text that each code stands for."""
    coded = column if isinstance(column, Coded) else Coded.of(column)
    alike = grouped_columns([coded], is_sorted=False)
    return alike.of, coded[alike.first].tolist()


# Which part of a graph is a launch that lacks some of its kernels?
#
# The capture begins or ends amid a launch, or the profiler drops kernels. What is left is matched
# as the same kernels of a whole launch are.


@dataclass(frozen=True)
class _Whole:
    names: Ints
    answer: Answer
    place_of: dict[tuple[int, int], int]


@dataclass
class Wholes:
    """The matched launches by label, largest first. Grows as launches are matched."""

    _known: dict[int, list[_Whole]] = field(default_factory=dict)

    def keep(self, label: int, nodes: Ints, names: Ints, answer: Answer) -> None:
        """Remember a launch that was matched, by its label, nodes and kernel names."""
        pairs = zip(nodes.tolist(), names.tolist(), strict=True)
        places = {pair: place for place, pair in enumerate(pairs) if pair[0] >= 0}
        self._known.setdefault(label, []).append(_Whole(names, answer, places))

    def part(self, label: int, nodes: Ints, names: Ints) -> Answer | None:
        """The answer of the same kernels in a larger launch of the label; None if in none."""
        if label == NO_LABEL:
            return None
        for whole in self._known.get(label, []):
            places = _places(whole, nodes, names)
            if places is not None:
                return whole.answer.of(places)
        return None


def _places(whole: _Whole, nodes: Ints, names: Ints) -> Ints | None:
    """Places in the whole by node and name, or without nodes where the names stand in a row."""
    if (nodes >= 0).all():
        pairs = zip(nodes.tolist(), names.tolist(), strict=True)
        found = [whole.place_of.get(pair, -1) for pair in pairs]
        return np.array(found, np.int64) if min(found) >= 0 else None
    length = len(names)
    if length > len(whole.names):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(whole.names, length)
    starts = np.flatnonzero((windows == names).all(axis=1))
    return np.arange(starts[0], starts[0] + length) if len(starts) == 1 else None


# Of which HLO ops are the kernels whose recorded op is no instruction?
#
# Kernels that a GPU graph launched carry the name of the graph (``command_buffer_3``) instead of
# their op's. `graph_match` finds the op from the program's schedule; here its answers enter the
# work of a host.

_NUMBERS = ("device", "run_id", "correlation_id", "graph_node", "start_ns")
_TEXTS = ("line", "name", "kind", "op")


def with_graph_ops(
    work: Table, ops: Table, programs: Mapping[int, Program], labels: Labels
) -> Table:
    """`work` of a host, with op, instruction, evidence and confidence of what could be matched.

    `ops` are the `HLO_OPS` of all `programs`; work of other programs stays as it is.
    """
    is_stream_work = work["kind"] != labels.code("op")  # XLA:CPU and TPU name each op themselves
    is_open = is_stream_work & (work["instruction"] < 0) & (work["module"] != -1)
    modules = distinct(work["module"][is_open], is_sorted=False).tolist()
    modules = [module for module in modules if module in programs]
    if not modules:
        return work
    texts = labels.texts
    readable = work.select(*_NUMBERS).assign(**{name: Coded(work[name], texts) for name in _TEXTS})
    found = {name: work[name].copy() for name in ("instruction", "op", "evidence", "confidence")}
    for module in modules:
        places = np.flatnonzero(work["module"] == module)
        answers = match_graphs(readable[places], programs[module])
        rows = np.flatnonzero(ops["module"] == module)
        row_of = dict(zip(ops["op"][rows].tolist(), rows.tolist(), strict=True))
        _enter(found, places, answers, row_of, labels)
    return work.assign(**found)


def _enter(
    found: Mapping[str, np.ndarray],
    places: Ints,
    answers: Table,
    row_of: Mapping[str, int],
    labels: Labels,
) -> None:
    """Write the answers that name an instruction, of work at `places`, into the columns found."""
    is_known = answers["evidence"] == "graph"
    ops, mine = answers["op"], places[is_known]
    rows, codes = np.zeros((2, len(ops.texts)), np.int64)
    used = np.unique(ops.codes[is_known])
    rows[used] = [row_of[ops.texts[code]] for code in used.tolist()]
    codes[used] = [labels.code(ops.texts[code]) for code in used.tolist()]
    found["instruction"][mine] = rows[ops.codes[is_known]]
    found["op"][mine] = codes[ops.codes[is_known]]
    found["evidence"][mine] = labels.code("graph")
    found["confidence"][mine] = answers["confidence"][is_known]
