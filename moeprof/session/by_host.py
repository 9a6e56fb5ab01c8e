"""Question: which figures of a run can be put together of what its hosts say a few at a time?

`PARTS` has what questions compute of the work of some hosts, and how answers join: sums of
whole numbers, rows one behind the other. A trace that knows these answers questions without the
work itself, to the digit as if all of it had been read at once; a question that needs more meets a
frame that is not there, and is withheld. Waits across hosts are found of the joined calls, and are
known to within the residual of the clocks, as always.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moeprof.analyzers.activity import account, outside
from moeprof.analyzers.activity.device_steps import spans_from
from moeprof.analyzers.activity.gaps import lengths_of_gaps
from moeprof.analyzers.attribution import (
    added,
    classes_of,
    labels,
    op_sums,
    parts_in_steps,
    programs_of,
    rules_matched,
    window_sums,
)
from moeprof.analyzers.communication.calls import RecordedCalls, recorded_calls
from moeprof.analyzers.costs.grouped import grouped_products
from moeprof.analyzers.costs.table import RUNS, runs_of
from moeprof.analyzers.gain import longest_first, sure_times
from moeprof.analyzers.gap_causes import idle_by_cause, idle_sums
from moeprof.analyzers.heap.device import device_peaks
from moeprof.analyzers.laws.time import last_ends
from moeprof.analyzers.questions.breakdown import rendezvous_ns
from moeprof.analyzers.questions.dispatch_combine import exposed_by_op
from moeprof.analyzers.questions.stragglers import work_by_device
from moeprof.analyzers.questions.timeline import begun_pieces
from moeprof.analyzers.window import (
    NO_STEP,
    Window,
    busy_by_step,
    op_time,
    used_steps,
    window,
    window_in_steps,
)
from moeprof.columns.grouping import distinct, grouped, places_in
from moeprof.columns.table import Given, Table, stacked
from moeprof.ingest.by_host import HERE, Readers, Reading
from moeprof.ingest.one_host import InSteps, without
from moeprof.ingest.sources.locate import Profiles, are_by_process
from moeprof.tables.name_rule import NameRules
from moeprof.tables.once import Latest, answer, is_answered
from moeprof.tables.trace import Trace, with_meta, with_names
from moeprof.tell import Tell, unheard

if TYPE_CHECKING:
    import pandas as pd

Answers = Sequence[Any]
"""What the batches of hosts say, in the order of the hosts."""


def _sum(answers: Answers) -> Any:
    return functools.reduce(lambda one, other: one + other, answers)


def _both(answers: Answers) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*answers, strict=True))


def _series(answers: Sequence[pd.Series]) -> pd.Series:
    """Values of other places on each host; a step that several have is added up."""
    import pandas as pd

    filled = [each for each in answers if len(each)] or list(answers[:1])
    whole = pd.concat(filled)
    levels: Any = list(range(whole.index.nlevels))
    sums: pd.Series = whole.groupby(level=levels, observed=True).sum() if len(whole) else whole
    return sums


def _stack(answers: Answers) -> Any:
    """Tables, or frames, one behind the other."""
    known = [each for each in answers if len(each)] or answers[:1]
    whole = stacked([Table.of(each) for each in known])
    return whole if isinstance(known[0], Table) else whole.pandas()


def _summed(answers: Sequence[Table], name: str) -> Table:
    """Values in one column of other places on each host; those of one place are added up."""
    whole: Table = _stack(answers)
    places = whole.without(name)
    groups = grouped(places, *places)
    found: Table = places[groups.first]
    return found.assign(**{name: groups.sum(whole[name])})


def _added(answers: Sequence[Table]) -> Table:
    whole = _stack(answers)
    return added(whole, [name for name in whole if name not in ("self_ns", "pieces")])


def _runs(answers: Sequence[Table]) -> Table:
    whole: Table = _stack(answers)
    groups = grouped(whole, "module", "op", "component", "phase")
    sums = {name: groups.sum(whole[name]) for name in ("runs", "pieces", "self_ns")}
    return RUNS.table(whole[groups.first].assign(**sums).columns)


def _outside(answers: Sequence[outside.RecordedWork | None]) -> outside.RecordedWork | None:
    known = [each for each in answers if each is not None]
    if not known:
        return None
    return outside.RecordedWork(
        sum(each.all_ns for each in known),
        sum(each.used_ns for each in known),
        sum(each.dropped_ns for each in known),
        outside.outside_by_place(_stack([each.outside for each in known])),
    )


def _calls(answers: Sequence[RecordedCalls]) -> RecordedCalls:
    """Calls of all hosts: known ops in the order of their rows, then the names of the others."""
    every = dict.fromkeys(op for each in answers for op in each.ops)
    rows = sorted(op for op in every if isinstance(op, int))
    ops: tuple[int | str, ...] = (*rows, *(op for op in every if isinstance(op, str)))
    place = {op: at for at, op in enumerate(ops)}
    tables = []
    for each in answers:
        places = np.array([place[op] for op in each.ops], np.int64)
        if len(each.table):
            tables.append(each.table.assign(op=places[each.table["op"]]))
    table = stacked(tables) if tables else answers[0].table
    none = np.zeros(0, np.int64)
    return RecordedCalls(ops, table, Table({"row": none, "op": none}))


Part = Callable[[Trace], Any]
PARTS: Mapping[Part, Callable[[Answers], Any]] = {
    window_sums: _sum,
    op_time: _both,
    busy_by_step: lambda answers: _summed(answers, "busy_ns"),
    parts_in_steps: _stack,
    op_sums: _added,
    work_by_device: _stack,
    runs_of: _runs,
    sure_times: lambda answers: longest_first(_stack(answers)),
    outside.recorded_work: _outside,
    outside.pieces_between: lambda answers: outside.pieces_added(_stack(answers)),
    rendezvous_ns: sum,
    lengths_of_gaps: lambda answers: tuple(
        _summed(gaps, "ns") for gaps in zip(*answers, strict=True)
    ),
    recorded_calls: _calls,
    exposed_by_op: _series,
    last_ends: _stack,
    device_peaks: lambda answers: _summed(answers, "peak_bytes"),
    grouped_products: _stack,
    idle_sums: lambda answers: idle_by_cause(_stack(answers)),
    account.account_of: _stack,
    begun_pieces: np.concatenate,
}
"""What is computed of some hosts, and how the answers join, in the order of the hosts."""


_ALWAYS: tuple[Part, ...] = (
    *(window_sums, op_time, parts_in_steps, outside.recorded_work, rendezvous_ns),
    *(lengths_of_gaps, last_ends, account.account_of, begun_pieces),
)
"""What the trust record needs, whatever is asked."""
_ASKED: Mapping[str, tuple[Part, ...]] = {
    "step_time": (busy_by_step, outside.pieces_between, idle_sums),
    "breakdown": (),
    "timeline": (),
    "ops": (op_sums,),
    "collectives": (recorded_calls,),
    "dispatch_combine": (recorded_calls, exposed_by_op),
    "stragglers": (recorded_calls, work_by_device),
    "grouped_gemm": (runs_of,),
    "memory": (device_peaks,),
    "roofline": (runs_of, grouped_products),
}
"""What questions need besides; others may need all."""


def parts_for(only: Sequence[str], ops: Given) -> tuple[Part, ...]:
    """The parts that questions need, of all where none is named, in one order."""
    if not only or any(name not in _ASKED for name in only):
        return tuple(PARTS)
    needed = {*_ALWAYS, *(part for name in only for part in _ASKED[name])}
    if (ops["size_bytes"] < 0).any():  # the law of bytes may ask what ran
        needed.add(runs_of)
    return tuple(part for part in PARTS if part in needed)


class Told(NamedTuple):
    """What some hosts say: their devices with work in the window, their programs, parts by name.

    ``is_in_steps`` tells whether the window is that of the used steps.
    """

    devices: int
    is_in_steps: bool
    modules: tuple[int, ...]
    parts: Mapping[str, Any]


def ask_hosts(only: Sequence[str], names: NameRules, trace: Trace, inside: InSteps) -> Told:
    """What some hosts say of the parts that questions need, in the steps of all hosts.

    Whether there are figures of steps is one for the run, whatever these have `inside` them.
    """
    if names.rules:
        trace = with_names(trace, names)
    _remember(trace)
    source = "executions" if inside.runs else "work" if inside.work else "nothing"
    answer(trace, spans_from, source)
    if inside.work:
        answer(trace, window, window_in_steps(trace))
    modules = tuple(distinct(trace.table("events")["module"]).tolist())
    parts = {part.__name__: part(trace) for part in parts_for(only, trace.table("hlo_ops"))}
    parts = {name: _looked_at(found) for name, found in parts.items()}
    return Told(window(trace).devices, inside.work, modules, parts)


def _looked_at(found: Any) -> Any:
    """A table whose columns hold nothing of those that its rows were chosen from."""
    return Table(found.columns) if isinstance(found, Table) else found


_OF_PROGRAMS: tuple[Part, ...] = (rules_matched, classes_of, labels)
_remembered = Latest()


def _remember(trace: Trace) -> None:
    """Programs are those of all hosts, and are classified once for all that are read here."""
    programs = trace.programs
    answer(trace, programs_of, {module: programs[module] for module in sorted(programs)})
    ops = trace.table("hlo_ops")
    key = (id(ops), trace.meta.names)  # no other table has this id as long as this one is kept
    _, found = _remembered.of(key, lambda: (ops, [part(trace) for part in _OF_PROGRAMS]))
    for part, known in zip(_OF_PROGRAMS, found, strict=True):
        answer(trace, part, known)


def with_answers(trace: Trace, told: Sequence[Told]) -> Trace:
    """`trace`, which has no work, knowing what its hosts said of theirs."""
    devices = sum(each.devices for each in told)
    is_whole = devices and not any(each.is_in_steps for each in told)
    used = 0 if is_whole else len(set(used_steps(trace).tolist()))
    notes = NO_STEP if is_whole else ()
    answer(trace, window, Window(used, devices, notes, without("events")))
    modules = sorted({module for each in told for module in each.modules})
    known = {module: trace.programs[module] for module in modules if module in trace.programs}
    answer(trace, programs_of, known)
    for part, join in PARTS.items():
        if all(part.__name__ in each.parts for each in told):  # else what needs it is withheld
            answer(trace, part, join([each.parts[part.__name__] for each in told]))
    _order_segments(trace)
    return trace


def _order_segments(trace: Trace) -> None:
    """Have segments by name of the host, as of a run read at once, with the ranks of the run."""
    table, pieces = account.account_of(trace), begun_pieces(trace)
    order, devices = table.order("host"), trace.table("devices")
    ranks = np.append(devices["rank"], -1)[places_in(table, devices, "host", "device")]
    answer(trace, account.account_of, table.assign(rank=ranks)[order])
    answer(trace, begun_pieces, pieces[order])


def on_hardware(trace: Trace, key: str) -> Trace:
    """`trace` on the device that `key` names, knowing what its hosts said: none asks for it."""
    changed = with_meta(trace, hardware=key)
    for part in (window, programs_of, *PARTS):
        if is_answered(trace, part):
            answer(changed, part, part(trace))
    return changed


def read_by_host(
    found: Profiles,
    paths: Sequence[Path | str],
    only: Sequence[str] = (),
    names: NameRules | None = None,
    *,
    are_chosen: bool = False,
    readers: AbstractContextManager[Readers] | None = None,
    tell: Tell = unheard,
) -> Trace | None:
    """The trace of a run of many hosts that answers `only`, all questions where none is named.

    None where it must be read at once: of fewer than two hosts there is nothing to join, and JSON
    traces may hold several processes each.
    """
    if not are_by_process(found.files):
        return None
    rules = names or NameRules()
    ask = functools.partial(ask_hosts, tuple(only), rules)
    reading = Reading(found, paths, ask, are_chosen=are_chosen)
    with readers or nullcontext(HERE) as those:
        reading.read(those, tell)
    joined = reading.joined()  # which takes memory that readers have given back by now
    if joined is None:
        return None
    trace, told = joined
    return with_answers(with_names(trace, rules) if rules.rules else trace, told)
