"""Question: which executions make up a training step, and which steps can be measured?

A step is cut from device work, never from the host's clock: with asynchronous dispatch the host
is ahead. Markers (StepTraceAnnotation) say which executions belong together where they agree
with the executions of the largest module; else every execution of that module is a step, with
the executions of those other modules that come once or more in every step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from moeprof.ingest.work import Launch, Marker

_WARM_UP = 2.0  # a leading step of more than this many medians still warms up
_ENOUGH = 3  # steps that must be left to call another one an outlier


@dataclass(frozen=True)
class Execution:
    """One execution of a module over all devices of a host."""

    module: int
    run_id: int
    start_ns: int
    end_ns: int
    busy_ns: int
    ops: int
    devices: int


@dataclass(frozen=True)
class Step:
    """A step of one host with the runs it consists of; ``reason`` says why it is not used."""

    step: int
    module: int
    start_ns: int
    end_ns: int
    runs: tuple[tuple[int, int], ...]
    reason: str = ""


def cut_steps(
    executions: Sequence[Execution],
    markers: Sequence[Marker],
    launches: Sequence[Launch],
    compiles_ps: Sequence[int] = (),
) -> tuple[list[Step], str]:
    """Steps in order of time, and one line on how they were found."""
    if not executions:
        return [], "no step: no execution of a module can be told apart"
    main = largest_module(executions)
    markers, owners = _best_markers(executions, main, markers, launches)
    if _markers_fit(executions, main, owners):
        steps = _marked(executions, markers, owners, main)
        how = f"steps from {len(steps)} annotation(s) '{markers[0].name}'"
    else:
        steps = _by_module(executions, main)
        how = f"steps from executions of the largest module (annotations found: {len(markers)}"
        how += ", not used)" if markers else ")"
    compiled = {m.step for m in markers if any(m.start_ps <= at <= m.end_ps for at in compiles_ps)}
    return _without_warm_up(_judged(steps, executions, compiled)), how


def largest_module(executions: Sequence[Execution]) -> int:
    """The module with the most device time."""
    busy: Counter[int] = Counter()
    for execution in executions:
        busy[execution.module] += execution.busy_ns
    return max(busy, key=lambda module: busy[module])


def _best_markers(
    executions: Sequence[Execution],
    main: int,
    markers: Sequence[Marker],
    launches: Sequence[Launch],
) -> tuple[list[Marker], dict[int, int]]:
    """Markers of one name, and what they own: a name that fits, with the most main runs."""
    runs = {e.run_id for e in executions if e.module == main}
    best: tuple[list[Marker], dict[int, int]] = ([], {})
    most = (False, -1)
    for name in dict.fromkeys(marker.name for marker in markers):
        mine = [marker for marker in markers if marker.name == name]
        owners = _owners(mine, launches)
        owned = (_markers_fit(executions, main, owners), len(runs & owners.keys()))
        if owned > most:
            best, most = (mine, owners), owned
    return best


def _owners(markers: Sequence[Marker], launches: Sequence[Launch]) -> dict[int, int]:
    """run id -> index of the marker in which the host launched it."""
    order = sorted(range(len(markers)), key=lambda i: markers[i].start_ps)
    starts = [markers[i].start_ps for i in order]
    found: dict[int, int] = {}
    for launch in launches:
        at = bisect_right(starts, launch.start_ps) - 1
        if at >= 0 and launch.start_ps <= markers[order[at]].end_ps:
            found[launch.run_id] = order[at]
    return found


def _markers_fit(executions: Sequence[Execution], main: int, owners: dict[int, int]) -> bool:
    """Most runs of the main module lie in markers, and not all of several in a single one."""
    runs = [e.run_id for e in executions if e.module == main]
    owned = Counter(owners[run] for run in runs if run in owners)
    return 2 * sum(owned.values()) > len(runs) and (len(owned) > 1 or len(runs) == 1)


def _marked(
    executions: Sequence[Execution], markers: Sequence[Marker], owners: dict[int, int], main: int
) -> list[Step]:
    mine: dict[int, list[Execution]] = defaultdict(list)
    for execution in executions:
        if execution.run_id in owners:
            mine[owners[execution.run_id]].append(execution)
    steps = []
    for index, marker in enumerate(markers):
        if mine[index]:
            steps.append(_step(marker.step, mine[index], main))
        else:
            start, end = marker.start_ps // 1000, marker.end_ps // 1000
            steps.append(Step(marker.step, -1, start, end, (), "no device work in it"))
    return sorted(steps, key=lambda step: step.start_ns)


def _by_module(executions: Sequence[Execution], main: int) -> list[Step]:
    ordered = sorted(executions, key=lambda e: e.start_ns)
    starts = [e.start_ns for e in ordered if e.module == main]
    groups: list[list[Execution]] = [[] for _ in starts]
    for execution in ordered:
        at = bisect_right(starts, execution.start_ns) - 1
        if at >= 0:
            groups[at].append(execution)
    regular = _in_every(groups[:-1] or groups)
    return [
        _step(number, [e for e in group if e.module in regular], main)
        for number, group in enumerate(groups)
    ]


def _in_every(groups: list[list[Execution]]) -> set[int]:
    modules = [{e.module for e in group} for group in groups]
    return set.intersection(*modules)


def _step(number: int, executions: list[Execution], main: int) -> Step:
    return Step(
        step=number,
        module=main,
        start_ns=min(e.start_ns for e in executions),
        end_ns=max(e.end_ns for e in executions),
        runs=tuple((e.module, e.run_id) for e in executions),
    )


def _judged(steps: list[Step], executions: Sequence[Execution], compiled: set[int]) -> list[Step]:
    """Give a reason to every step that was compiled in or that the capture cut."""
    ops = {(e.module, e.run_id): e.ops for e in executions}
    devices = {(e.module, e.run_id): e.devices for e in executions}
    sizes = [sum(ops[run] for run in step.runs) for step in steps]
    widths = [max((devices[run] for run in step.runs), default=0) for step in steps]
    judged = []
    for at, step in enumerate(steps):
        others = [size for i, size in enumerate(sizes) if i != at and steps[i].runs]
        reason = step.reason
        if not reason and step.step in compiled:
            reason = "compiled in it"
        if not reason and widths[at] < max(widths):
            reason = f"work of {widths[at]} of {max(widths)} devices"
        if not reason and at in (0, len(steps) - 1) and others and sizes[at] < min(others):
            where = "began before the capture" if at == 0 else "cut by the end of the capture"
            reason = f"{where}: {sizes[at]} of {min(others)} ops"
        judged.append(_with(step, reason))
    return judged


def _without_warm_up(steps: list[Step]) -> list[Step]:
    used = [s for s in steps if not s.reason]
    while len(used) > _ENOUGH:
        rest = median(s.end_ns - s.start_ns for s in used[1:])
        length = used[0].end_ns - used[0].start_ns
        if length <= _WARM_UP * rest:
            break
        reason = f"warm-up: {length / rest:.1f} × the median of the steps after it"
        steps = [_with(s, reason) if s is used[0] else s for s in steps]
        used = used[1:]
    return steps


def _with(step: Step, reason: str) -> Step:
    return Step(step.step, step.module, step.start_ns, step.end_ns, step.runs, reason)
