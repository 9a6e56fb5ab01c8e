"""Which lines of a GPU's process are its streams, and what the others say about their work.

XProf draws lines of programs, ops, steps and launches beside the streams, derived from them and
named by them (``XLA Ops - from #7``). They would count the same work again. What they tell of a
program and an op is kept where the kernels themselves name none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.ingest.chrome_json.gathered import Gathered
from moeprof.ingest.planes.device_planes import gpu_ordinal
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
