"""Question: how long does a training step take?

Returns: one row per step found, the dropped ones with the reason.

A step lasts from the first start to the last end of its device work, over all devices. What sets
the throughput is the interval, from the start of a step to the start of the next: it holds what
lies between steps too. The mean interval is that of all devices, each by its host's clock: last
start less first start, over their number less one, as long as no step between them is left out.
Tokens per second are those of the global batch, by the devices that share it, over the mean
interval; over the median step where no interval is known.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.activity.account import (
    PARTS,
    account_of,
    interval_by_step,
    intervals_of,
    mean_interval_ns,
)
from moeprof.analyzers.activity.outside import (
    OUTSIDE,
    RecordedWork,
    other_programs,
    period,
    recorded_work,
    steps_in_a_row,
)
from moeprof.analyzers.gap_causes import idle_between
from moeprof.analyzers.load.batch import batch_of
from moeprof.analyzers.question import Group, Picture, Question, Taken
from moeprof.analyzers.window import busy_by_step, window
from moeprof.answers.bars import (
    Bars,
    Figure,
    Fill,
    columns,
)
from moeprof.answers.document import Document, StepInfo
from moeprof.answers.story import (
    described_interval_parts,
    described_outside,
    described_step,
)
from moeprof.columns.grouping import grouped, places_in
from moeprof.columns.table import Table, texts_of
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.clock import is_comparable
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_count, format_ns, format_percent

SCHEMA = Schema(
    "step_time",
    (
        Column("step", "int64", "", "step, as the script or the trace numbers it"),
        Column("start_ns", "int64", "ns", "start, since the capture began"),
        Column("duration_ns", "int64", "ns", "first start to last end of its device work"),
        Column(
            "interval_ns",
            "float64",
            "ns",
            "start to the next used step's start, slowest host; none for the last",
        ),
        Column("busy_share", "float64", "share", "of it, the part in which a device works, mean"),
        Column("used", "bool", "", "whether figures are taken from it"),
        Column("reason", "text", "", "why it is not used"),
        Column("other_programs", "text", "", "what runs between it and the next, longest first"),
    ),
)
Float64s = npt.NDArray[np.float64]
ASKS = "How long does a training step take?"
_FEW = 3
_MOST_PLACES = 4
_WORTH = 0.01
"""Share of the mean interval from which on a program is worth a note on its rounds."""


def step_time(trace: Trace) -> Analysis:
    """Durations of all steps found; the headline is taken from the used ones."""
    table = _table(trace)
    used = table[table["used"]]
    durations = used["duration_ns"]
    known = len(used) > 0
    recorded = recorded_work(trace)
    headline = (
        Metric("step_time_median", _median(durations), "ns"),
        Metric("step_time_min", int(durations.min()) if known else None, "ns"),
        Metric("step_time_max", int(durations.max()) if known else None, "ns"),
        Metric("interval_median", _median(used["interval_ns"]), "ns"),
        Metric("busy_share", _median(used["busy_share"]), "share"),
        Metric("steps_used", len(used), "count"),
        Metric("steps_dropped", len(table) - len(used), "count"),
        *_of_intervals(trace, used),
        *_of_outside(trace, recorded),
        *_of_tokens(trace, used),
    )
    notes = (*_notes(trace), *_notes_on_intervals(trace, used), *_notes_on_outside(trace, recorded))
    return Analysis("step_time", ASKS, headline, SCHEMA, table, notes)


def _table(trace: Trace) -> Table:
    steps, lasting = trace.table("steps"), interval_by_step(trace)
    numbers = steps["step"].tolist()
    busy = _by_step(busy_by_step(trace), "busy_ns", steps["step"])
    whole = max(window(trace).devices, 1) * steps["duration_ns"].astype(np.float64)
    share = np.divide(busy, whole, out=np.full(len(steps), np.nan), where=whole > 0)
    others: dict[int, list[str]] = {}
    for step, program in other_programs(trace).rows("step", "program"):
        others.setdefault(step, []).append(program)
    return SCHEMA.table(
        steps.assign(
            interval_ns=np.array([lasting.get(step, np.nan) for step in numbers], np.float64),
            busy_share=share,
            other_programs=texts_of(", ".join(others.get(s, ())) for s in numbers),
        ).columns
    )


def _by_step(known: Table, name: str, steps: npt.NDArray[np.int64]) -> Float64s:
    """A column of `known` for each of these steps; NaN where it has none."""
    values = np.append(known[name].astype(np.float64), np.nan)
    found: Float64s = values[places_in(Table({"step": steps}), known, "step")]
    return found


def _of_intervals(trace: Trace, used: Table) -> tuple[Metric, ...]:
    """The mean interval and the parts that add up to it; none where no step has a next one."""
    table = intervals_of(account_of(trace))
    known = len(table) > 0
    mean = {part: _mean(table[f"{part}_ns"]) for part in ("interval", *PARTS)}
    lengths = _known(used["interval_ns"])
    in_step = [Metric(f"interval_{p}", _plain(mean[p]), "ns") for p in PARTS[:4]]
    between = [Metric(part, _plain(mean[part]), "ns") for part in PARTS[4:]]
    shares = [
        Metric(f"{part}_share", _plain(mean[part] / mean["interval"]), "share")
        for part in PARTS[4:]
        if not known or mean["interval"]
    ]
    causes = idle_between(trace)["cause"]
    return (
        Metric("interval_mean", _plain(mean["interval"]), "ns"),
        Metric("interval_min", float(lengths.min()) if len(lengths) else None, "ns"),
        Metric("interval_max", float(lengths.max()) if len(lengths) else None, "ns"),
        Metric("intervals", len(lengths), "count"),
        *in_step,
        *between,
        *shares,
        Metric("between_idle_cause", causes[0] if len(causes) else None, ""),
    )


def _of_outside(trace: Trace, recorded: RecordedWork | None) -> tuple[Metric, ...]:
    """Work of no step, mean over devices; none where there is no step that it could be outside."""
    names = ("outside_time", "outside_share", "outside_pieces", "outside_programs")
    units = ("ns", "share", "count", "")
    values: tuple[float | str | None, ...] = (None,) * 4
    if recorded is not None:
        devices = max(trace.meta.devices, 1)
        outside = recorded.outside
        programs = dict.fromkeys(outside["program"])
        values = (
            recorded.outside_ns / devices,
            recorded.outside_share,
            int(outside["pieces"].sum()) / devices,
            ", ".join(programs) or None,
        )
    return tuple(Metric(*metric) for metric in zip(names, values, units, strict=True))


def _of_tokens(trace: Trace, used: Table) -> tuple[Metric, ...]:
    """Tokens of a step, and what a device does of them in a second.

    Of a second from step to step, and of one of a step's device work: they are no one figure.
    """
    batch = batch_of(trace)
    tokens = batch.tokens / batch.devices if batch else np.nan
    whole_ns, work_ns = mean_interval_ns(trace) or np.nan, _mean(used["duration_ns"]) or np.nan
    return (
        Metric("tokens_per_step", batch.tokens if batch else None, "tokens"),
        Metric("tokens_per_second_device", _plain(tokens / whole_ns * 1e9), "tokens/s"),
        Metric("step_tokens_per_second_device", _plain(tokens / work_ns * 1e9), "tokens/s"),
    )


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _known(values: np.ndarray) -> np.ndarray:
    known: np.ndarray = values[~np.isnan(values)]
    return known


def _mean(values: np.ndarray) -> float:
    """Of those that are known; NaN where none is."""
    known = _known(values)
    return float(known.mean()) if len(known) else np.nan


def _median(values: np.ndarray) -> float | None:
    known = _known(values)
    return float(np.median(known)) if len(known) else None


def _notes(trace: Trace) -> tuple[str, ...]:
    notes = []
    if not is_comparable(trace.meta):
        notes.append("clocks of hosts are not aligned: a step lasts as long as on its slowest host")
    if trace.meta.platform == "cpu":
        notes.append("virtual CPU devices share the machine's cores: the time is this machine's")
    return tuple(notes)


def _notes_on_intervals(trace: Trace, used: Table) -> list[str]:
    """Why an interval is not known, what devices wait for between steps, and what runs there."""
    if not len(used):
        return []
    notes = []
    unknown = int(np.isnan(used["interval_ns"]).sum()) - 1
    if unknown == len(used) - 1:
        notes.append("no interval is known: no step that is used has a used one right after it")
    elif unknown > 0:
        notes.append(
            f"{format_count(unknown)} interval{'s are' if unknown > 1 else ' is'} not known: the "
            "next step is left out or its number is missing"
        )
    idle = idle_between(trace)
    if len(idle):
        each = idle.rows("cause", "per_interval_ns")
        told = ", ".join(f"{cause} {format_ns(ns)}" for cause, ns in each)
        notes.append(f"idle between steps, mean of an interval: {told}")
    return notes + _note_on_rounds(trace, used)


def _note_on_rounds(trace: Trace, used: Table) -> list[str]:
    """The mean over whole rounds, where a program runs once in several steps at equal distance."""
    others = other_programs(trace)
    others = others[others["per_device_ns"] >= _WORTH * _mean(used["interval_ns"])]
    steps = steps_in_a_row(trace)
    lengths = _by_step(used, "interval_ns", steps)
    notes = []
    programs = grouped(others, "program")
    names = others["program"][programs.first].tolist()
    for program, rows in zip(names, programs.rows(), strict=True):
        places = np.flatnonzero(np.isin(steps, others["step"][rows]))
        distance = period(places, len(steps))
        if distance > 1:
            whole = lengths[places[0] + 1 : places[-1] + 1]
            notes.append(
                f"{program} runs once in {distance} steps: over {len(places) - 1} whole rounds "
                f"the mean interval is {format_ns(float(whole.mean()))}"
            )
    return notes


def _pieces(pieces: int, devices: int) -> str:
    """The mean per device; where not each has one, how many there are on all of them."""
    if pieces < devices:
        return f"{_counted(pieces)} on {devices} devices"
    return _counted(round(pieces / devices))


def _counted(pieces: int) -> str:
    return f"{format_count(pieces)} piece{'' if pieces == 1 else 's'}"


def _notes_on_outside(trace: Trace, recorded: RecordedWork | None) -> list[str]:
    """Every program whose work is in no step, how much of it there is, and where."""
    if recorded is None or not recorded.outside_ns:
        return []
    devices = max(trace.meta.devices, 1)
    outside = recorded.outside
    listed = outside[:_MOST_PLACES].rows(*OUTSIDE.names)
    told = [
        f"{program} {format_ns(self_ns / devices)} in {_pieces(pieces, devices)} {place}"
        for program, place, pieces, self_ns in listed
    ]
    left = len(outside) - _MOST_PLACES
    more = f"; and {left} more" if left > 0 else ""
    return [
        f"outside of every step: {format_percent(recorded.outside_share)} of device time, "
        f"{format_ns(recorded.outside_ns / devices)} per device: {'; '.join(told)}{more}"
    ]


_STEP_USED = Fill("#0a6fb5")
_STEP_DROPPED = Fill("#a3a9af", "/")


def sentence(document: Document) -> str:
    """The mean interval and its parts, the device work of a step, and what lies outside of all."""
    told = [f"Time per step: {described_step(document)}."]
    if parts_of_it := described_interval_parts(document):
        told.append(f"From start to start: {parts_of_it}.")
    if outside := described_outside(document):
        told.append(f"O{outside[1:]}.")
    return " ".join(told)


def figure(document: Document) -> Figure | None:
    """One column per step in order of time; steps that are not used are grey, with the reason."""
    steps = document["steps"]
    kinds = [
        _step_bars("used", _STEP_USED, {n: s for n, s in enumerate(steps) if s["used"]}),
        _step_bars("not used", _STEP_DROPPED, {n: s for n, s in enumerate(steps) if not s["used"]}),
    ]
    bars = [kind for kind in kinds if kind.lengths]
    if not bars:
        return None
    return columns(bars, [str(step["step"]) for step in steps], axis="step", unit="ms")


def _step_bars(name: str, fill: Fill, steps: Mapping[int, StepInfo]) -> Bars:
    texts = [
        f"{format_ns(step['duration_ns'])}{': ' if step['reason'] else ''}{step['reason'] or ''}"
        for step in steps.values()
    ]
    lengths = [step["duration_ns"] / 1e6 for step in steps.values()]
    return Bars(name, fill, list(steps), lengths, texts, name, True)


QUESTION = Question(
    title="Step time",
    group=Group.TIME,
    place=1,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.DEVICE_CLOCKS, Need.WHOLE_STEPS, Need.INTERVALS}),
    schema=SCHEMA,
    run=step_time,
    sentence=sentence,
    figures=(Picture("", figure),),
    good_laws=("profiling_cost", "device_state"),
    on_first_screen=("steps_used", "steps_dropped"),
    taken=(
        Taken(
            ("tokens_per_step", "tokens_per_second_device", "step_tokens_per_second_device"),
            needs=frozenset({Need.PROGRAMS, Need.PROGRAMS_THAT_RAN}),
        ),
    ),
)
