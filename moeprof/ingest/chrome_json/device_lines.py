"""Which lines of a GPU's or a TPU's process are its work, and what do the others say about it?

XProf draws lines of programs, ops, steps and launches beside the streams, derived from them and
named by them (``XLA Ops - from #7``). They would count the same work again. What they tell of a
program and an op is kept where the kernels themselves name none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.planes import tpu_plane
from moeprof.ingest.planes.device_planes import gpu_ordinal, tpu_ordinal
from moeprof.ingest.planes.record import MADE_UP_RUN
from moeprof.ingest.planes.tpu_plane import is_in_flight, nests, op_name
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import Cover, cover, last_begun
from moeprof.tables.law import Law
from moeprof.units import format_count, format_ns

MODULES, OPS, STEPS = "XLA Modules", "XLA Ops", "Steps"
_DERIVED = (
    *(MODULES, OPS, STEPS, "XLA TraceMe", "Framework", "Source", "TensorFlow", "Command Buffer"),
    *("Launch Stats", "Kernels", "Tensor Core", "Name Scope", "Async XLA Ops", "Async Ops"),
)
"""What names of derived lines begin with, in XProf's and in JAX's traces."""
_STREAM = re.compile(r"stream\b", re.IGNORECASE)
_NUMBER = re.compile(r"#(\d+)")
_PROGRAM = re.compile(r"\(\d+\)$")
_ALMOST = 0.95
_NOTABLE = 0.01  # of the time on streams


@dataclass(frozen=True)
class GpuLines:
    """Of each event of a GPU whether it is work or derived, and labels of its program and op.

    The labels are 0 where no derived line tells them. ``left_out`` names lines of no known kind
    whose work is in no figure, ``beside_ns`` is how much of it lies beside the streams' work.
    """

    is_work: Flags
    is_derived: Flags
    is_step: Flags
    module: Int64s
    op: Int64s
    left_out: tuple[str, ...]
    beside_ns: int
    streams_ns: int


@dataclass(frozen=True)
class _Line:
    name: str
    places: Int64s

    @property
    def kind(self) -> str:
        """``stream``, ``derived``, ``other``, or empty for a line without a name."""
        if _STREAM.match(self.name):
            return "stream"
        if self.name.startswith(_DERIVED):
            return "derived"
        return "other" if self.name else ""


def gpu_lines(gathered: Gathered, keep: Flags) -> GpuLines:
    """Tell the lines of all GPU processes apart."""
    count = len(keep)
    is_work, is_derived, is_step = (np.zeros(count, bool) for _ in range(3))
    module, op = np.zeros(count, np.int64), np.zeros(count, np.int64)
    left_out: list[str] = []
    beside_ns = streams_ns = 0
    starts, ends = gathered.column("start_ns"), gathered.column("end_ns")
    for lines in _of_processes(gathered, keep):
        work, derived, unknown = _told_apart(lines, starts, ends)
        for line in work:
            is_work[line.places] = True
            _fill(gathered, line, derived, module, op)
        for line in (*derived, *unknown):
            is_derived[line.places] = True
            is_step[line.places] = line.name.startswith(STEPS)
        whole = _cover(work, starts, ends)
        streams_ns += whole.total
        for line in unknown:
            left_out.append(line.name)
            at, until = starts[line.places], ends[line.places]
            within = cover(at, until)
            common = whole.until(within.ends) - whole.until(within.starts)
            beside_ns += within.total - int(common.sum())
    told = tuple(dict.fromkeys(left_out))
    return GpuLines(is_work, is_derived, is_step, module, op, told, beside_ns, streams_ns)


def derived_lines(lines: GpuLines, derived: int) -> Law | None:
    """Whether all that happened on a GPU is on its streams; None for a trace without such lines."""
    if not derived:
        return None
    count = format_count(derived)
    is_notable = lines.beside_ns > _NOTABLE * lines.streams_ns
    told = f"{count} event(s) on lines beside the streams repeat their work and are left out"
    if lines.left_out:
        named = ", ".join(f"'{name}'" for name in lines.left_out[:3])
        told += (
            f"; of them {named} is of no known kind, with {format_ns(lines.beside_ns)} beside the "
            "streams' work: no figure has it"
        )
    return Law(
        "derived_lines",
        "warn" if is_notable else "ok",
        told,
        expected=0,
        found=lines.beside_ns,
        unit="ns",
    )


def _of_processes(gathered: Gathered, keep: Flags) -> Iterator[list[_Line]]:
    """The lines of each GPU process that has events."""
    texts = gathered.labels.texts
    process, thread = gathered.column("process"), gathered.column("thread")
    for owner, name in gathered.names.items():
        if gpu_ordinal(name) is None:
            continue
        mine = np.flatnonzero(keep & (process == gathered.labels.code(owner)))
        if not len(mine):
            continue
        codes, at = np.unique(thread[mine], return_inverse=True)
        yield [
            _Line(gathered.threads.get((owner, texts[code]), ""), mine[at == place])
            for place, code in enumerate(codes.tolist())
        ]


def _told_apart(
    lines: Sequence[_Line], starts: Int64s, ends: Int64s
) -> tuple[list[_Line], list[_Line], list[_Line]]:
    """Lines of work, derived ones, and those of no known kind that are left out.

    Beside streams all named lines are derived. Without a stream the names say little: a line is
    left out if its events begin and end with those of longer lines, as what is derived does.
    """
    derived = [line for line in lines if line.kind == "derived"]
    others = [line for line in lines if line.kind == "other"]
    work = [line for line in lines if line.kind in ("stream", "")]
    if any(line.kind == "stream" for line in work):
        return work, derived, others
    unknown = []
    for line in sorted(others, key=lambda line: -len(line.places)):
        if work and _repeats(line, work, starts, ends):
            unknown.append(line)
        else:
            work.append(line)
    return work, derived, unknown


def _repeats(line: _Line, others: Sequence[_Line], starts: Int64s, ends: Int64s) -> bool:
    places = np.concatenate([other.places for other in others])
    begins = np.isin(starts[line.places], starts[places])
    stops = np.isin(ends[line.places], ends[places])
    return bool((begins & stops).mean() >= _ALMOST)


def _cover(lines: Sequence[_Line], starts: Int64s, ends: Int64s) -> Cover:
    places = np.concatenate([line.places for line in lines] or [np.zeros(0, np.int64)])
    return cover(starts[places], ends[places])


def _fill(
    gathered: Gathered, line: _Line, derived: Sequence[_Line], module: Int64s, op: Int64s
) -> None:
    """Labels of program and op of a stream's work, by the derived events around it."""
    number = _NUMBER.search(line.name)
    for kind, labels in ((MODULES, module), (OPS, op)):
        of_stream = [d for d in derived if d.name.startswith(kind) and _is_from(d.name, number)]
        if not of_stream:
            continue
        around = np.concatenate([one.places for one in of_stream])
        around = around[np.argsort(gathered.column("start_ns")[around], kind="stable")]
        begins, stops = (gathered.column(name)[around] for name in ("start_ns", "end_ns"))
        at_ns = gathered.column("start_ns")[line.places]
        none = np.zeros(1, np.int64)
        at = last_begun(none.repeat(len(around)), begins, none.repeat(len(at_ns)), at_ns)
        is_in = (at >= 0) & (at_ns < stops[np.maximum(at, 0)])
        named = gathered.column("event")[around]
        codes = _without_number(gathered, named) if kind == MODULES else named
        labels[line.places] = np.where(is_in, codes[np.maximum(at, 0)], 0)


def _is_from(name: str, stream: re.Match[str] | None) -> bool:
    source = _NUMBER.search(name)
    return source is None or (stream is not None and source.group(1) == stream.group(1))


def _without_number(gathered: Gathered, named: Int64s) -> Int64s:
    """Labels of programs' names without the number behind them."""
    texts = gathered.labels.texts
    used, at = np.unique(named, return_inverse=True)
    codes = [gathered.labels.code(_PROGRAM.sub("", texts[code])) for code in used.tolist()]
    return np.array(codes, np.int64)[at]


# Which events of a TPU's process are ops, and of which execution and step are they?
#
# The lines are those of `tpu_plane`: ops, what is in flight beside them, executions, steps.

_SPARSE = " SparseCore "


@dataclass(frozen=True)
class TpuLines:
    """Of each event its core (-1: none of a TPU) and whether it is an op; executions by start.

    ``modules`` are labels of the programs' names without their number.
    """

    core: Int64s
    is_op: Flags
    is_step: Flags
    cores: Int64s
    starts_ns: Int64s
    ends_ns: Int64s
    modules: Int64s
    runs: Int64s

    def execution(self, core: Int64s, at_ns: Int64s) -> Int64s:
        """Place of the execution that runs on each core at each point, else -1."""
        if not len(self.cores):
            return np.full(len(at_ns), -1, np.int64)
        place = last_begun(self.cores, self.starts_ns, core, at_ns)
        at = np.maximum(place, 0)
        is_in = (place >= 0) & (self.cores[at] == core) & (at_ns <= self.ends_ns[at])
        return np.where(is_in, place, -1)


def tpu_lines(gathered: Gathered, keep: Flags) -> TpuLines:
    """Tell the lines of all TPU processes apart."""
    texts = gathered.labels.texts
    process, thread = gathered.column("process"), gathered.column("thread")
    core = np.full(len(process), -1, np.int64)
    flags = {name: np.zeros(len(process), bool) for name in ("op", "module", "step")}
    for owner, name in gathered.names.items():
        ordinal = tpu_ordinal(name)
        if ordinal is None:
            continue
        mine = process == gathered.labels.code(owner)
        core[mine] = ordinal
        for (other, number), line in gathered.threads.items():
            if other != owner:
                continue
            is_on = keep & mine & (thread == gathered.labels.code(number))
            flags["op"] |= is_on & (nests(line) or is_in_flight(line))
            if _SPARSE not in name:  # a SparseCore works in the executions of its device
                flags["module"] |= is_on & (line in tpu_plane.MODULES)
                flags["step"] |= is_on & (line == tpu_plane.STEPS)
    places = np.flatnonzero(flags["module"])
    places = places[np.lexsort((gathered.column("start_ns")[places], core[places]))]
    named = [_PROGRAM.sub("", texts[code]) for code in gathered.column("event")[places].tolist()]
    return TpuLines(
        core=core,
        is_op=flags["op"],
        is_step=flags["step"],
        cores=core[places],
        starts_ns=gathered.column("start_ns")[places],
        ends_ns=gathered.column("end_ns")[places],
        modules=np.array([gathered.labels.code(name) for name in named], np.int64),
        runs=_runs(gathered.column("run_id")[places], core[places]),
    )


def op_labels(gathered: Gathered, places: Int64s) -> Int64s:
    """Labels of the ops that these events are of, by their own name where nothing else says."""
    texts, code = gathered.labels.texts, gathered.labels.code
    unique, inverse = np.unique(gathered.column("event")[places], return_inverse=True)
    names = np.array([code(op_name(texts[label])) for label in unique.tolist()], np.int64)
    told = gathered.column("op")[places]
    return np.where(told != 0, told, names[inverse] if len(names) else told)


def _runs(told: Int64s, core: Int64s) -> Int64s:
    """Ids of executions; those without are numbered in their order on the core."""
    place = np.arange(len(core)) - np.searchsorted(core, core)
    return np.where(told == NONE, MADE_UP_RUN + place, told)
