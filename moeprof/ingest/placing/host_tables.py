"""Question: which instruction, execution and step is each piece of a host's work of?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table, joined
from moeprof.hlo.program import Program
from moeprof.ingest.placing.executions import (
    NONE_UNLAUNCHED,
    Unlaunched,
    crossed,
    known_executions,
    number_executions,
    over_devices,
    unlaunched,
    with_recurring_runs,
)
from moeprof.ingest.placing.graph_match.match import with_graph_ops
from moeprof.ingest.placing.lost_launches import (
    NOTHING_LOST,
    OF_EXCLUDED,
    LostLaunches,
    lost_launches,
    silent_devices,
    without_lost,
)
from moeprof.ingest.placing.lost_pieces import NOTHING_MISSED, LostPieces, lost_pieces
from moeprof.ingest.placing.run_ids import with_annotated_runs, with_calls, with_joint_runs
from moeprof.ingest.placing.self_time import (
    Bodies,
    halves_within_ns,
    nested_self_times_ns,
    self_times_ns,
    with_loose_ops,
)
from moeprof.ingest.placing.step import Cut, Step
from moeprof.ingest.placing.steps import cut_steps
from moeprof.ingest.placing.too_long import Endless, endless_pieces, repaired, without_endless
from moeprof.ingest.placing.whole_steps import without_cut_short, without_half_lost, without_unseen
from moeprof.ingest.planes.left_out import REPEATED, near_the_work, without_repeats
from moeprof.ingest.planes.record import (
    COLUMNS,
    Host,
    Labels,
    Launch,
    Record,
    is_made_up,
    is_same,
)
from moeprof.ingest.planes.tpu_plane import is_in_flight, nests
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import WAIT

Instructions = Mapping[tuple[int, str], int]
"""(module, op) -> row of `HLO_OPS`."""


@dataclass(frozen=True)
class HostTables:
    """What one process contributes to the frames besides its work.

    ``executions`` has device, module, run_id, start_ns, end_ns, busy_ns, ops; ``step_of`` gives
    the step of (module, run id). ``not_serial`` names the streams on which pieces overlap all the
    time, ``lost`` says which launches have no work; what the devices did that it excludes is in
    no table. ``silent`` are devices that ran something and recorded nothing, ``endless`` last
    pieces of streams that are recorded as too long.
    """

    host: Host
    executions: Table
    cut: Cut
    step_of: Mapping[tuple[int, int], int]
    stray_ns: int
    not_serial: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lost: LostLaunches = NOTHING_LOST
    silent: tuple[int, ...] = ()
    endless: tuple[Endless, ...] = ()
    unlaunched: Unlaunched = NONE_UNLAUNCHED
    pieces: LostPieces = NOTHING_MISSED


def host_tables(
    host: Host,
    ops: Table,
    instructions: Instructions,
    inside: Bodies,
    programs: Mapping[int, Program],
) -> tuple[HostTables, Table]:
    """Place the work of a host, which is taken out of its record.

    `ops` are `HLO_OPS` of `programs`, `instructions` their rows by name. The work comes sorted by
    device and start and has, besides the columns of `record.COLUMNS`, recorded_ns, instruction,
    evidence (code), confidence, step and self_ns.
    """
    record = near_the_work(host.record)
    host = replace(host, record=record)
    ordered = _in_order(record.take_work())
    once, repeats = without_repeats(ordered, _single_launches(record))
    record.drop(REPEATED, repeats)
    work, not_serial = repaired(once, record.labels)
    work = with_graph_ops(resolved(work, instructions, record.labels), ops, programs, record.labels)
    work, endless = endless_pieces(work, ops["opcode"], record.labels, not_serial)
    work, notes = with_recurring_runs(work, ops, host.programs)
    work, annotated = with_annotated_runs(work, record.markers, record.calls)
    is_work = work["kind"] != record.labels.code(WAIT)
    mine = work if is_work.all() else work[is_work]
    number, counted = number_executions(mine)
    rows, launches, unclear = with_joint_runs(
        counted, [*record.launches, *annotated], lambda module: _name_of(host, module)
    )
    launches = with_calls(launches, rows, mine, number, record.calls)
    known = known_executions(with_loose_ops(rows, mine, number, ops, inside))
    cut, lost = _steps(host, known, launches, mine, rows, number)
    step_of = {run: step.step for step in cut.steps for run in step.runs}
    is_out = _is_of(work["device"], lost.excluded)
    around = steps_around(cut.steps, work["start_ns"])
    around[is_out] = -1
    by_execution = _steps_of_executions(rows, step_of, lost.excluded)
    step = around.copy()  # a wait is of the step in which it begins
    if len(mine):
        has_run = (rows["run_id"] != -1) & (rows["module"] != -1)
        step[is_work] = np.where(has_run[number], by_execution[number], around[is_work])
    whole, endless = without_endless(cut.steps, endless, step)
    cut = cut._replace(steps=whole)
    if record.is_damaged:
        counts = _pieces_by_device(step[is_work], mine["device"])
        cut = cut._replace(steps=without_half_lost(cut.steps, counts))
    cut = cut._replace(steps=without_cut_short(cut.steps, mine, step[is_work], ops))
    of_row = _steps_of_executions(rows, step_of, lost.excluded)
    kept, pieces = lost_pieces(cut.steps, mine, number, rows, of_row, ops)
    cut = cut._replace(steps=kept)
    self_ns = np.zeros(len(work), np.int64)
    self_ns[is_work] = _self_ns(mine, number, host, ops, inside)
    if rows is not counted:
        work = work.assign(run_id=_run_ids(work["run_id"], is_work, rows, number))
    stray_ns = int(self_ns[(around != -1) & (step == -1)].sum())
    work = work.assign(step=step, self_ns=self_ns)
    silent = silent_devices(record.executed, work, lost)
    if lost.excluded:
        record.drop(OF_EXCLUDED, int(is_out.sum()))
        work = work[~is_out]
        known = known[~_is_of(known["device"], lost.excluded)]
    said = (*notes, *unclear)
    tables = HostTables(host, known, cut, step_of, stray_ns, not_serial, said, lost, silent)
    lacking = unlaunched(record.calls, work, work["step"])
    return replace(tables, endless=endless, unlaunched=lacking, pieces=pieces), work


def _steps(
    host: Host,
    known: Table,
    launches: Sequence[Launch],
    work: Table,
    rows: Table,
    number: Int64s,
) -> tuple[Cut, LostLaunches]:
    """The steps of a host, of those devices whose launches have their work."""
    record, lost = host.record, NOTHING_LOST
    while True:
        whole = known[~_is_of(known["device"], lost.excluded)]
        cut = cut_steps(
            over_devices(whole),
            record.markers,
            launches,
            record.compiles_ns,
            host.counting,
            lambda module: _name_of(host, module),
        )
        cut = cut._replace(steps=without_unseen(cut.steps, record.known_until_ns))
        step_of = {run: step.step for step in cut.steps for run in step.runs}
        by_execution = _steps_of_executions(rows, step_of, lost.excluded)
        step = by_execution[number] if len(number) else np.zeros(0, np.int64)
        found = lost_launches(record.called, work, step, cut.steps, lost.excluded, record.executed)
        if found.excluded == lost.excluded:
            return cut._replace(steps=without_lost(cut.steps, found)), found
        lost = found


def _is_of(device: Int64s, devices: frozenset[int]) -> Flags:
    return np.isin(device, list(devices)) if devices else np.zeros(len(device), bool)


def _single_launches(record: Record) -> Int64s:
    """Correlation ids of the host's calls that bring one piece of work: no replays of graphs."""
    if record.called is None or not len(record.called.calls):
        return np.zeros(0, np.int64)
    calls = record.called.calls
    ids: Int64s = calls["correlation_id"][~calls["is_replay"]]
    return ids


def _in_order(parts: Sequence[Table]) -> Table:
    """All work by device and start, the longest first of those that start at once."""
    columns = {
        name: joined([part[name] for part in parts] or [np.zeros(0, np.int64)]) for name in COLUMNS
    }
    order = np.lexsort((-columns["end_ns"], columns["start_ns"], columns["device"]))
    for name, column in columns.items():  # one after the other: the old one is free at once
        columns[name] = column if is_same(column) else column[order]
    return Table(columns)


def resolved(work: Table, instructions: Instructions, labels: Labels) -> Table:
    """`work` with the row of its instruction, how it is known and how sure that is."""
    texts = labels.texts
    alike = grouped(work, "module", "op")
    rows = [
        instructions.get((module, texts[op]), -1)
        for module, op in work[alike.first].rows("module", "op")
    ]
    instruction = np.array(rows, np.int64)[alike.of]
    evidence = [labels.code("none"), labels.code("recorded")]
    return work.assign(
        instruction=instruction,
        evidence=np.where(instruction >= 0, evidence[1], evidence[0]),
        confidence=(instruction >= 0).astype(np.float64),
    )


def _name_of(host: Host, module: int) -> str:
    """Name of a program, its id where it is not there."""
    program = host.programs.get(module)
    return program.name if program else f"program {module}"


def _run_ids(told: Int64s, is_work: Flags, rows: Table, number: Int64s) -> Int64s:
    """Ids of executions as all devices share them; a wait keeps only one that the runtime gave."""
    run_id = np.where(is_made_up(told), -1, told)
    run_id[is_work] = rows["run_id"][number]
    return run_id


def _self_ns(work: Table, number: Int64s, host: Host, ops: Table, inside: Bodies) -> Int64s:
    """Self time of each piece of work; `number` is that of its execution."""
    labels = host.record.labels
    starts, ends = work["start_ns"], work["end_ns"]
    self_ns = self_times_ns(starts, ends, work["instruction"], number, inside)
    nested = _nested_without_program(work, host, labels)
    self_ns[nested] = _nested_self_ns(work[nested])
    flies = _is_on(work, labels, is_in_flight)
    self_ns[flies] -= halves_within_ns(work, flies, number, ops, labels)
    return self_ns


def _nested_without_program(work: Table, host: Host, labels: Labels) -> Int64s:
    """Places of the work of programs that are not there, on lines where ops lie in one another."""
    is_known = np.isin(work["module"], list(host.programs))
    return np.flatnonzero(_is_on(work, labels, nests) & ~is_known)


def _is_on(work: Table, labels: Labels, test: Callable[[str], bool]) -> Flags:
    """Whether each piece is on a line whose name passes the test."""
    alike, texts = grouped(work, "line"), labels.texts
    used = work["line"][alike.first].tolist()
    passed: Flags = np.array([test(texts[code]) for code in used], dtype=bool)[alike.of]
    return passed


def _nested_self_ns(work: Table) -> Int64s:
    return nested_self_times_ns(
        work["start_ns"], work["end_ns"], grouped(work, "device", "line").of
    )


def _pieces_by_device(step: Int64s, device: Int64s) -> dict[int, list[int]]:
    """How many pieces of work each device has in a step."""
    steps, counts = crossed(step, device)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


def steps_around(steps: Sequence[Step], at_ns: Int64s) -> Int64s:
    """Number of the step whose device work spans each point, of several the last begun; else -1.

    `steps` are in order of time.
    """
    real = [step for step in steps if step.runs]
    if not real:
        return np.full(len(at_ns), -1, np.int64)
    starts = np.array([step.start_ns for step in real], np.int64)
    ends = np.array([step.end_ns for step in real], np.int64)
    numbers = np.array([step.step for step in real], np.int64)
    at = np.searchsorted(starts, at_ns, "right") - 1
    is_in: Flags = (at >= 0) & (at_ns <= ends[np.maximum(at, 0)])
    return np.where(is_in, numbers[np.maximum(at, 0)], -1)


def _steps_of_executions(
    rows: Table, step_of: Mapping[tuple[int, int], int], excluded: frozenset[int]
) -> Int64s:
    pairs = rows.rows("module", "run_id")
    steps = np.array([step_of.get(pair, -1) for pair in pairs], np.int64)
    steps[_is_of(rows["device"], excluded)] = -1
    return steps
