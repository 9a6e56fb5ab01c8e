"""Question: where does a training step go?

Returns: one row per kind of layer, component and phase.

Times are self times: a loop gives up the time of its body. Ops of one device may run at once
(several streams or threads), so the parts add up to the device's op time, which may exceed the
time in which the device is busy; shares are of the op time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from moeprof.analyzers.activity.account import mean_interval_ns
from moeprof.analyzers.attribution import parts_in_steps, window_sums
from moeprof.analyzers.classify.components import BY_RULE, BY_STRUCTURE, GUESS, MEANINGS, MOE
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.analyzers.renamed import described_names
from moeprof.analyzers.window import PER_STEP, Window, window
from moeprof.answers import story
from moeprof.answers.bars import (
    Bars,
    Figure,
    Fill,
    horizontal,
)
from moeprof.answers.colours import PHASES, colour
from moeprof.answers.document import Document
from moeprof.answers.story import (
    NAME_WIDTH,
    described_parts,
    label,
    parts,
)
from moeprof.answers.values import shortened
from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table, isin, texts_of
from moeprof.tables.analysis import Analysis, Metric, Status
from moeprof.tables.intervals import Int64s
from moeprof.tables.law import WITHOUT_GRAPHS, Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_ns, format_percent

SCHEMA = Schema(
    "breakdown",
    (
        Column("layer_kind", "text", "", "kind of layer: moe_layer, dense_layer, head, …"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("per_step_ns", "float64", "ns", f"self time, {PER_STEP}"),
        Column("share", "float64", "share", "of all op time"),
        Column("calls", "float64", "count", f"kernels, copies or thunks run, {PER_STEP}"),
        Column("collective_ns", "float64", "ns", "of it, in collective ops, their waits included"),
        Column("step_spread_ns", "float64", "ns", "standard deviation over steps; none for one"),
        Column(
            "device_spread_ns", "float64", "ns", "standard deviation over devices; none for one"
        ),
        Column("meaning", "text", "", "what the component holds"),
        Column(
            "interval_share", "float64", "share", "of the mean interval; none where that is unknown"
        ),
    ),
)
ASKS = "Where does a training step go?"
WORTH_A_NOTE = 0.005
"""Share of device time without a sure op from which on capturing again is worth while."""


@once  # its law asks again
def breakdown(trace: Trace) -> Analysis:
    """Device time of the used steps by layer, component and phase, with a row for no part."""
    view = window(trace)
    work = parts_in_steps(trace)
    table = _table(work, view)
    share = table["per_step_ns"] / (mean_interval_ns(trace) or np.nan)
    table = SCHEMA.table(table.assign(interval_share=share).columns)
    busy = window_sums(trace).busy_ns
    named = _named(work, has_rules=bool(trace.meta.names.rules))
    headline, schema = _headline(table, view, busy, named), view.stated(SCHEMA)
    status: Status = "ok" if len(table) else "none"
    return Analysis("breakdown", ASKS, headline, schema, table, _notes(trace, view), status=status)


_KEYS = ("layer_kind", "component", "phase")


def _table(work: Table, view: Window) -> Table:
    total_ns = int(work["self_ns"].sum())
    groups = grouped(work, *_KEYS, is_sorted=False)
    parts = {name: work[name][groups.first].tolist() for name in _KEYS}
    sums = [
        groups.sum(work["self_ns"]),
        groups.sum(work["pieces"]),
        groups.sum(np.where(work["is_collective"], work["self_ns"], 0)),
        _spread(work, groups.of, ("step",), view.devices),
        _spread(work, groups.of, ("host", "device"), max(view.steps, 1)),
    ]
    if len(groups) and "unattributed" not in parts["component"]:  # always told, be it nothing
        for name, text in zip(_KEYS, ("outside", "unattributed", "other"), strict=True):
            parts[name].append(text)
        none = [0, 0, 0, *(np.nan if np.isnan(each).all() else 0.0 for each in sums[3:])]
        sums = [np.append(each, value) for each, value in zip(sums, none, strict=True)]
    sum_ns, pieces, collective_ns, step_spread_ns, device_spread_ns = sums
    texts = parts | {"meaning": [MEANINGS[name] for name in parts["component"]]}
    table = Table({name: texts_of(column) for name, column in texts.items()}).assign(
        per_step_ns=sum_ns / view.shares,
        share=sum_ns / total_ns if total_ns else np.zeros(len(sum_ns)),
        calls=pieces / view.shares,
        collective_ns=collective_ns / view.shares,
        step_spread_ns=step_spread_ns,
        device_spread_ns=device_spread_ns,
    )
    return table.sorted("per_step_ns", *_KEYS, falling=["per_step_ns"])


def _spread(work: Table, part: Int64s, over: tuple[str, ...], divisor: int) -> np.ndarray:
    """Standard deviation of each part's time over `over`; a step or device without it counts as 0.

    Missing where there is one alone.
    """
    places = grouped(work, *over, is_sorted=False)
    sums = np.zeros((len(places), int(part.max(initial=-1)) + 1), np.int64)
    np.add.at(sums, (places.of, part), work["self_ns"])
    if len(places) < 2:
        return np.full(sums.shape[1], np.nan)
    found: np.ndarray = np.std(sums / divisor, axis=0, ddof=1)
    return found


def _named(work: Table, *, has_rules: bool) -> dict[str, float | None]:
    """Shares of op time whose part the program names, its structure tells, or a guess gives.

    Where the user gave rules, that which they name too.
    """
    total_ns = int(work["self_ns"].sum())
    is_known = work["component"] != "unattributed"
    is_guess = is_known & (work["named_with"] < GUESS)
    is_told = is_known & ~is_guess
    by_structure = isin(work["evidence"], BY_STRUCTURE)
    by_rule = work["evidence"] == BY_RULE
    which = {
        "named_by_program_share": is_told & ~by_structure & ~by_rule,
        "named_by_structure_share": is_told & by_structure,
        "guessed_share": is_guess,
    } | ({"named_by_rules_share": by_rule} if has_rules else {})
    return {
        name: int(work["self_ns"][rows].sum()) / total_ns if total_ns else None
        for name, rows in which.items()
    }


def _headline(
    table: Table, view: Window, busy: int, named: Mapping[str, float | None]
) -> tuple[Metric, ...]:
    def share(names: frozenset[str]) -> float | None:
        if not len(table):
            return None
        return float(table["share"][isin(table["component"], names)].sum())

    op_ns = float(table["per_step_ns"].sum()) if len(table) else None
    device_ns = busy / view.shares if len(table) else None
    return (
        Metric("unattributed_share", share(frozenset({"unattributed"})), "share"),
        Metric("other_share", share(frozenset({"other"})), "share"),
        Metric("moe_share", share(MOE), "share"),
        *(Metric(name, value, "share") for name, value in named.items()),
        Metric("op_time", op_ns, "ns"),
        Metric("busy_time", device_ns, "ns"),
        Metric("steps_used", view.steps, "count"),
        Metric("basis", view.basis, ""),
    )


def _notes(trace: Trace, view: Window) -> tuple[str, ...]:
    notes = [*described_names(trace), *view.notes]
    share = window_sums(trace).graph_share
    if share >= WORTH_A_NOTE:
        notes.append(
            f"{format_percent(share)} of device time is inside command buffers and has no sure op; "
            f"{WITHOUT_GRAPHS[trace.meta.framework]} to attribute it"
        )
    if trace.meta.platform == "cpu":
        notes += _cpu_notes(trace, view)
    return tuple(notes)


def _cpu_notes(trace: Trace, view: Window) -> list[str]:
    wait_ns = rendezvous_ns(trace) / view.shares
    total_ns = window_sums(trace).self_ns / view.shares
    share = format_percent(wait_ns / total_ns if total_ns else 0.0)
    return [
        "virtual CPU devices share the machine's cores: an op's time includes waiting for a core, "
        "and shares say nothing about an accelerator",
        f"collectives wait for the last device inside their op: {share} of op time is such waiting",
    ]


@once
def rendezvous_ns(trace: Trace) -> int:
    """How long CPU devices wait for their peers in the steps with work, all together."""
    waits = trace.table("rendezvous")
    is_in_steps = isin(waits["step"], window_sums(trace).steps)
    return int(waits["duration_ns"][is_in_steps].sum())


_PHASE_KEY = "#7d858d"


def sentence(document: Document) -> str:
    """The largest component."""
    found = parts(document)
    if not found:
        return ""
    name = shortened(label(found[0].component), NAME_WIDTH)
    return (
        f"Largest part: {name}, {format_percent(found[0].share)} "
        f"({format_ns(found[0].duration_ns)}) {described_parts(document)}."
    )


def figure(document: Document) -> Figure | None:
    """One bar per component, its phases one after the other; milliseconds."""
    totals = story.phase_totals(document)
    if not totals:
        return None
    components = [part.component for part in story.parts(document)]
    bars = [
        phase_bars(component, phase, {components.index(component): totals[component, phase]})
        for phase in phases(totals)
        for component in components
        if (component, phase) in totals
    ]
    labels = [story.label(component) for component in components]
    return horizontal([*bars, *phase_keys(phases(totals))], labels, f"ms {story.basis(document)}")


def phases(keys: Iterable[tuple[str, str]]) -> list[str]:
    """The phases among (component, phase) in the order a step runs them, unknown ones last."""
    places = {name: place for place, name in enumerate(PHASES)}
    found = {phase for _component, phase in keys}
    return sorted(found, key=lambda name: (places.get(name, len(places)), name))


def phase_bars(component: str, phase: str, durations_ns: Mapping[int, float]) -> Bars:
    """The phase is a pattern over the component's colour, so that neither hides the other."""
    return Bars(
        name=f"{story.label(component)}, {phase}",
        fill=Fill(colour(component), PHASES.get(phase, ".")),
        places=list(durations_ns),
        lengths=[duration_ns / 1e6 for duration_ns in durations_ns.values()],
        texts=[format_ns(duration_ns) for duration_ns in durations_ns.values()],
        key=phase,
        is_key=False,
    )


def phase_keys(names: Iterable[str]) -> list[Bars]:
    """Grey entries of the legend: the colours of the bars are the components'."""
    return [
        Bars(name, Fill(_PHASE_KEY, PHASES.get(name, ".")), (), (), (), name, True)
        for name in names
    ]


QUESTION = Question(
    title="Where the step goes",
    group=Group.TIME,
    place=2,
    asks=ASKS,
    needs=frozenset(
        {Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.WHOLE_STEPS, Need.COMPONENTS, Need.NESTING}
    ),
    schema=SCHEMA,
    run=breakdown,
    sentence=sentence,
    figures=(Picture("", figure),),
    holds_all_work=True,
    on_first_screen=("basis",),
)
