"""Which steps a trace's annotations tell, and in which of them each piece of work was launched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.ingest.chrome_json.device_work import DeviceWork
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.planes.record import Marker
from moeprof.ingest.planes.tpu_plane import STEPS
from moeprof.ingest.xspace.space import Flags, Int64s, number_in
from moeprof.tables.intervals import last_begun

FIRST_RUN = 2**39
"""The first id of executions by step: above those of runtimes, below made up ones."""

KINETO_STEP = "ProfilerStep#"
"""What PyTorch's profiler names a step, its number behind it."""
_NUMBERED = re.compile(r"(?:(.*) )?([0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True)
class JsonSteps:
    """Steps by start, and the number of the group of events that each is of, `NONE` for none.

    ``are_on_device`` says whether they span when work ran, not when the host launched it.
    """

    markers: list[Marker]
    groups: list[int]
    are_on_device: bool = False

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.markers)


def annotated(gathered: Gathered, found: DeviceWork, keep: Flags) -> JsonSteps:
    """Step annotations of JAX (by their number) and of PyTorch (by their name), by start.

    XProf may leave the number to the name (``train 7``), which stands on the line of steps of a
    device too. Where no event of the host has it, the steps are those of the first device.
    """
    texts = gathered.labels.texts
    number, named = gathered.column("step_num"), gathered.column("event")
    is_kineto = np.isin(
        named, [code for code, text in enumerate(texts) if text.startswith(KINETO_STEP)]
    ) & (gathered.column("category") == gathered.labels.code("user_annotation"))
    is_marker = keep & ~found.gpu.is_step & ((number != NONE) | is_kineto)
    if not is_marker.any() and found.gpu.is_step.any():
        is_marker = _named_steps(gathered, found, keep)
    are_on_device = bool((is_marker & found.gpu.is_step).any())
    starts, ends, groups = (gathered.column(n) for n in ("start_ns", "end_ns", "group"))
    places = np.flatnonzero(is_marker)
    places = places[np.argsort(starts[places], kind="stable")].tolist()
    names = [texts[code] for code in named[places].tolist()]
    told = _told_steps(names, number[places].tolist(), is_kineto[places].tolist())
    stamps = zip(starts[places].tolist(), ends[places].tolist(), strict=True)
    markers = [Marker(*one, *both) for one, both in zip(told, stamps, strict=True)]
    return JsonSteps(markers, groups[places].tolist(), are_on_device)


def _named_steps(gathered: Gathered, found: DeviceWork, keep: Flags) -> Flags:
    """Events of the host that are called as steps of a device are, else those of one device."""
    named, process = gathered.column("event"), gathered.column("process")
    is_step = keep & found.gpu.is_step
    texts = gathered.labels.texts
    names = [n for n in np.unique(named[is_step]).tolist() if _NUMBERED.fullmatch(texts[n])]
    is_step &= np.isin(named, names)
    is_device = np.isin(process, np.unique(process[is_step]))
    found_steps: Flags = keep & ~is_device & np.isin(named, names)
    if not found_steps.any():
        found_steps = is_step & (process == process[is_step].min(initial=2**62))
    return found_steps


def _told_steps(
    names: Sequence[str], numbers: Sequence[int], is_kineto: Sequence[bool]
) -> list[tuple[str, int]]:
    """Name and number of each annotation: ``train 7`` is step 7 of ``train``.

    The number belongs to the name where the same name has another number too.
    """
    parts = [_NUMBERED.fullmatch(name) for name in names]
    is_split = [
        found is not None and number in (NONE, int(found.group(2)))
        for found, number in zip(parts, numbers, strict=True)
    ]
    plain = {name for name, split in zip(names, is_split, strict=True) if not split}
    told = []
    for name, number, part, kineto in zip(names, numbers, parts, is_kineto, strict=True):
        if kineto:
            told.append((KINETO_STEP, number_in(name.removeprefix(KINETO_STEP))))
        elif part is None or name in plain:
            told.append((name, number))
        else:
            told.append((part.group(1) or STEPS, int(part.group(2))))
    return told


def core_steps(gathered: Gathered, found: DeviceWork) -> JsonSteps:
    """Steps of the first TPU core, which own what began on it in them: the host is ahead."""
    tpu = found.tpu
    places = np.flatnonzero(tpu.is_step)
    places = places[tpu.core[places] == tpu.core[places].min(initial=2**31)]
    named, texts = gathered.column("event")[places].tolist(), gathered.labels.texts
    starts, ends = (gathered.column(name)[places].tolist() for name in ("start_ns", "end_ns"))
    steps = [number_in(texts[code]) for code in named]
    markers = map(Marker, [STEPS] * len(steps), steps, starts, ends)
    return JsonSteps(sorted(markers, key=lambda m: m.start_ns), [NONE] * len(steps))


def runs_of(found: DeviceWork, gathered: Gathered, steps: JsonSteps) -> Int64s:
    """The execution of each piece: its own id, else the step in which it was launched.

    The launch is found by its id. Without one in a step the group of the piece tells it, else when
    it ran.
    """
    own = gathered.column("run_id")[found.places]
    if not steps:
        return np.where(own == NONE, -1, own)
    launched, is_launched = _launched_ns(found, gathered)
    if steps.are_on_device:
        launched, is_launched = found.work["start_ns"], np.zeros(len(own), bool)
    starts = np.array([marker.start_ns for marker in steps.markers], np.int64)
    ends = np.array([marker.end_ns for marker in steps.markers], np.int64)
    none = np.zeros(1, np.int64)
    at = last_begun(none.repeat(len(starts)), starts, none.repeat(len(launched)), launched)
    at = np.where((at >= 0) & (launched <= ends[np.maximum(at, 0)]), at, -1)
    by_group = _by_group(steps, gathered.column("group")[found.places])
    at = np.where((~is_launched | (at < 0)) & (by_group >= 0), by_group, at)
    return np.where(own != NONE, own, np.where(at >= 0, FIRST_RUN + at, -1))


def _by_group(steps: JsonSteps, group: Int64s) -> Int64s:
    """Place of the step of each piece's group; -1 for none, or where several steps have it."""
    known, first, count = np.unique(
        np.array(steps.groups, np.int64), return_index=True, return_counts=True
    )
    is_one = (known != NONE) & (count == 1)
    known, first = known[is_one], first[is_one]
    if not len(known):
        return np.full(len(group), -1, np.int64)
    at = np.minimum(np.searchsorted(known, group), len(known) - 1)
    return np.where(known[at] == group, first[at], -1)


def _launched_ns(found: DeviceWork, gathered: Gathered) -> tuple[Int64s, Flags]:
    """When the host launched each piece: by its correlation id, else when it ran."""
    correlation = gathered.column("correlation")
    is_call = correlation != NONE
    is_call[found.places] = False
    is_call &= ~found.gpu.is_derived
    order = np.argsort(correlation[is_call], kind="stable")
    known = correlation[is_call][order]
    calls_ns = gathered.column("start_ns")[is_call][order]
    mine = correlation[found.places]
    ran_ns: Int64s = found.work["start_ns"]
    if not len(known):
        return ran_ns, np.zeros(len(ran_ns), bool)
    at = np.minimum(np.searchsorted(known, mine), len(known) - 1)
    is_known = (known[at] == mine) & (mine != NONE)
    return np.where(is_known, calls_ns[at], ran_ns), is_known
