"""Question: how do steps, their parts and the receive buffers look?

Every function is pure: document in, plotly figure out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moeprof.answers import story
from moeprof.answers.bars import Bars, Figure, Fill, columns, horizontal
from moeprof.answers.colours import PHASES, colour, in_order
from moeprof.answers.document import Document, StepInfo, Value, rows
from moeprof.answers.values import written
from moeprof.reports.sentences.of_memory import buffer_name
from moeprof.units import format_ns

_MOST_BUFFERS = 40
_OP_WIDTH = 18
_WORST = Fill("#9db4ea")
_USED = Fill("#dd6a1f", "/")
_STEP_USED = Fill("#0a6fb5")
_STEP_DROPPED = Fill("#a3a9af", "/")
_PHASE_KEY = "#7d858d"


def breakdown(document: Document) -> Figure | None:
    """One bar per component, its phases one after the other; milliseconds."""
    totals = story.phase_totals(document)
    if not totals:
        return None
    components = [part.component for part in story.parts(document)]
    bars = [
        _phase_bars(component, phase, {components.index(component): totals[component, phase]})
        for phase in phases(totals)
        for component in components
        if (component, phase) in totals
    ]
    labels = [story.label(component) for component in components]
    return horizontal([*bars, *_phase_keys(phases(totals))], labels, f"ms {story.basis(document)}")


def comparison(documents: Sequence[Document]) -> Figure | None:
    """One bar per run: its phases one after the other, each by component; milliseconds."""
    runs = [story.phase_totals(document) for document in documents]
    components = in_order(component for run in runs for component, _phase in run)
    found = phases(key for run in runs for key in run)
    bars = [
        _phase_bars(component, phase, durations_ns)
        for phase in found
        for component in components
        if (durations_ns := _by_place(runs, (component, phase)))
    ]
    if not bars:
        return None
    return horizontal(
        [*bars, *_phase_keys(found)], story.run_labels(documents), f"ms {story.basis(*documents)}"
    )


def receive_buffers(document: Document) -> Figure | None:
    """Per buffer: the bytes it has for the worst case, and the bytes that tokens used; MiB."""
    buffers = rows(document, "receive_buffers")[:_MOST_BUFFERS]
    kinds = [
        _size_bars("worst case", _WORST, [row["worst_bytes"] for row in buffers]),
        _size_bars("used", _USED, [row["used_bytes"] for row in buffers]),
    ]
    bars = [kind for kind in kinds if kind.lengths]
    if not bars:
        return None
    labels = [buffer_name(row, _OP_WIDTH) for row in buffers]
    ops = [str(row["op"]) for row in buffers]
    return horizontal(bars, labels, "MiB", barmode="group", narrow=ops)


def step_time(document: Document) -> Figure | None:
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


def phases(keys: Iterable[tuple[str, str]]) -> list[str]:
    """The phases among (component, phase) in the order a step runs them, unknown ones last."""
    places = {name: place for place, name in enumerate(PHASES)}
    found = {phase for _component, phase in keys}
    return sorted(found, key=lambda name: (places.get(name, len(places)), name))


def _by_place(
    runs: Sequence[Mapping[tuple[str, str], float]], key: tuple[str, str]
) -> dict[int, float]:
    return {place: run[key] for place, run in enumerate(runs) if key in run}


def _phase_bars(component: str, phase: str, durations_ns: Mapping[int, float]) -> Bars:
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


def _phase_keys(names: Iterable[str]) -> list[Bars]:
    """Grey entries of the legend: the colours of the bars are the components'."""
    return [
        Bars(name, Fill(_PHASE_KEY, PHASES.get(name, ".")), (), (), (), name, True)
        for name in names
    ]


def _size_bars(name: str, fill: Fill, sizes: Sequence[Value]) -> Bars:
    known = {n: size for n, size in enumerate(sizes) if isinstance(size, int | float)}
    texts = [written(size, "bytes") for size in known.values()]
    lengths = [size / 2**20 for size in known.values()]
    return Bars(name, fill, list(known), lengths, texts, name, True)


def _step_bars(name: str, fill: Fill, steps: Mapping[int, StepInfo]) -> Bars:
    texts = [
        f"{format_ns(step['duration_ns'])}{': ' if step['reason'] else ''}{step['reason'] or ''}"
        for step in steps.values()
    ]
    lengths = [step["duration_ns"] / 1e6 for step in steps.values()]
    return Bars(name, fill, list(steps), lengths, texts, name, True)
