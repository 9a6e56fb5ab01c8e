"""Question: which events of a TPU's process are ops, and of which execution and step are they?

The lines are those of `tpu_plane`: ops, what is in flight beside them, executions, steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.planes.device_planes import tpu_ordinal
from moeprof.ingest.planes.record import MADE_UP_RUN
from moeprof.ingest.planes.tpu_plane import MODULES, STEPS, is_in_flight, nests, op_name
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import last_begun

_SPARSE = " SparseCore "
_NUMBER = re.compile(r"\(\d+\)$")


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
                flags["module"] |= is_on & (line in MODULES)
                flags["step"] |= is_on & (line == STEPS)
    places = np.flatnonzero(flags["module"])
    places = places[np.lexsort((gathered.column("start_ns")[places], core[places]))]
    named = [_NUMBER.sub("", texts[code]) for code in gathered.column("event")[places].tolist()]
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
