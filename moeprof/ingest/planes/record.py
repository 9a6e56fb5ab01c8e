"""Question: what did one process record, before it is joined with the others?

Device work is a table of whole numbers, one row per piece; text is held as codes of `Labels`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moeprof.columns.grouping import grouped_columns
from moeprof.columns.table import Table
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.sources.run_record import Counting
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.law import JAX, Law

LABELLED = ("line", "name", "kind", "op", "details")
COLUMNS = (
    *("device", "line", "name", "kind", "module", "op", "run_id", "start_ns", "end_ns"),
    *("correlation_id", "graph_id", "graph_node", "details"),
)
"""Columns of device work, all int64: those of `EVENTS`; -1 where unknown, text as codes."""


PROGRAM_NAME = "program_name"
"""A column beside those, dropped as soon as programs are joined by it."""

MADE_UP_RUN = 2**40
"""The first of the 2^32 run ids that the reader counts itself, on each device from here on.

Runtimes count theirs from 0, or draw them from all 64 bits, with sign: then one in 2^32 is taken
for a counted one.
"""


def is_made_up(run_id: Int64s) -> Flags:
    """Whether ids of executions are counted by the reader."""
    flags: Flags = (run_id >= MADE_UP_RUN) & (run_id < MADE_UP_RUN + 2**32)
    return flags


A_DATE_NS = 10**17
"""1973: no capture lasts so long, so smaller stamps are no dates."""


class Labels:
    """Texts by code, in order of their first use; code 0 is the empty text."""

    def __init__(self) -> None:
        """Know the empty text only."""
        self._codes: dict[str, int] = {"": 0}

    def code(self, text: str) -> int:
        """The code of a text, new if need be."""
        return self._codes.setdefault(text, len(self._codes))

    def codes(self, texts: Sequence[str], places: Int64s | np.ndarray) -> Int64s:
        """Codes of ``texts[places]``; a place of -1 is the empty text. Unused texts get none."""
        used = np.zeros(len(texts) + 1, dtype=bool)
        used[places] = True
        table = np.zeros(len(texts) + 1, dtype=np.int64)
        for place in np.flatnonzero(used[:-1]).tolist():
            table[place] = self.code(texts[place])
        return table[places]

    @property
    def texts(self) -> list[str]:
        """All texts by code."""
        return list(self._codes)


def work_frame(count: int, **columns: Int64s | int) -> Table:
    """Device work of `count` pieces; columns not given are unknown."""
    known = {name: columns.get(name, 0 if name in LABELLED else -1) for name in COLUMNS}
    return Table({n: same(v, count) if isinstance(v, int) else v for n, v in known.items()})


def same(value: int, count: int) -> Int64s:
    """A column of one value, which takes no memory; it cannot be written to."""
    return np.broadcast_to(np.int64(value), count)


def is_same(column: Int64s) -> bool:
    """Whether it is such a column."""
    return column.strides == (0,)


def distinct(values: Int64s) -> tuple[Int64s, Int64s]:
    """What `numpy.unique` gives with the inverse, without sorting labels and lines."""
    groups = grouped_columns([values])
    return values[groups.first], groups.of


class Marker(NamedTuple):
    """A step annotation of the user's program; ``line`` is its thread, -1 where unknown."""

    name: str
    step: int
    start_ns: int
    end_ns: int
    line: int = -1


class Launch(NamedTuple):
    """The host call that started execution ``run_id`` of a module.

    ``device`` is the one on which the reader counted that id; -1 where the runtime gave it.
    ``line`` is the thread of the call where only the calls of its kernels tell of it, else -1.
    """

    run_id: int
    start_ns: int
    device: int = -1
    line: int = -1


class Calls(NamedTuple):
    """Launch calls of the host, the first of each correlation id, sorted by that."""

    correlation: Int64s
    start_ns: Int64s
    line: Int64s

    def of(self, correlation: Int64s) -> Int64s:
        """Place of the call of each correlation id; -1 where there is none."""
        if not len(self.correlation):
            return np.full(len(correlation), -1, np.int64)
        at = np.searchsorted(self.correlation, correlation)
        at = np.minimum(at, len(self.correlation) - 1)
        return np.where((self.correlation[at] == correlation) & (correlation >= 0), at, -1)


NO_CALLS = Calls(*(np.zeros(0, np.int64) for _ in range(3)))


class Lead(NamedTuple):
    """How far device work of a host is behind its launches.

    ``pairs`` counts launches whose work is there, ``early`` those whose work begins before them as
    recorded; ``least_ns`` is the least time from a call to its work, ``spread_ns`` how much the
    least of a device differs over the capture. ``shifts_ns`` is what was added to stamps of
    devices, the least that their clocks are apart from the host's; ``are_apart`` says that a
    device's clock and the host's are, by no constant.
    """

    pairs: int
    early: int
    least_ns: int
    spread_ns: int
    shifts_ns: tuple[int, ...]
    are_apart: bool

    @property
    def is_comparable(self) -> bool:
        """Whether stamps of the host and of its devices can be compared."""
        return not (self.shifts_ns or self.are_apart)


class DeviceClock(NamedTuple):
    """A device of several: by how much its stamps were ahead of those of the reference.

    0 where no more than ends of collectives differ on one clock. ``residual_ns`` is the distance
    from that within which 90 % of the ``pairs`` compared calls lie.
    """

    device: int
    ahead_ns: int
    residual_ns: int
    pairs: int


class DeviceClocks(NamedTuple):
    """How the clocks of a host's devices stand to each other, and to the host's.

    ``others`` were compared with the ``reference`` and shifted onto its clock; ``unsure`` are
    devices whose calls cannot be as recorded, by how many ns, and that no constant mends.
    ``is_sure`` says that the reference's clock is that of the host; ``far_ns`` is the least time
    from launch to work of a device that never came near the host's calls, 0 where all did.
    """

    reference: int = -1
    others: tuple[DeviceClock, ...] = ()
    unsure: tuple[tuple[int, int], ...] = ()
    is_sure: bool = True
    far_ns: int = 0


NO_DEVICE_CLOCKS = DeviceClocks()


class NamedPrograms(NamedTuple):
    """Whether programs of the profile are those that events name.

    ``events`` counts the events with a name and an id, ``by_name`` those whose id is of no program
    or of another, and that were joined by name; ``joined`` are the names of these programs, and
    ``unknown`` says of others why no program of the profile is theirs.
    """

    events: int = 0
    by_name: int = 0
    joined: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


NO_NAMES = NamedPrograms()


@dataclass(frozen=True)
class HostCalls:
    """Calls that brought work to a device (`gpu_plane.CALLS`).

    ``run_of`` gives the execution of each correlation id, -1 where it is not known.
    """

    calls: Table
    run_of: Callable[[Int64s], Int64s]


@dataclass
class Record:
    """What the planes of one file hold. Readers append to it, and who orders the work takes it out.

    ``waits`` are tables of device, name, op, module, run_id, start_ns and end_ns: devices of a
    CPU run waiting for their peers. ``outliers`` describes the first events whose stamps cannot be;
    ``checks`` are for the trust record, of faults that only the reader of a format can see.
    ``called`` and ``executed``, rows (device, run_id), are what the host launched and ran, None
    where the format has none. ``known_until_ns`` is where the record ends before the capture did,
    None where it does not. ``ids`` are the numbers of devices among those of all processes, where
    the runtime told them. ``merged`` is what is known of other processes in the same file, None
    where there can be none. ``calls`` are the host's launch calls where devices have their own
    planes, ``lead`` what these say of the clocks, ``device_clocks`` what collectives
    do. Until programs are joined by it, ``work`` and
    ``waits`` may have a column `PROGRAM_NAME`: the label of the program's name as the event tells
    it.
    All stamps count from the start of the capture.
    """

    labels: Labels
    work: list[Table] = field(default_factory=list)
    waits: list[Table] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    compiles_ns: list[int] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    damage: list[str] = field(default_factory=list)
    outliers: list[str] = field(default_factory=list)
    checks: list[Law] = field(default_factory=list)
    events: int = 0
    known_until_ns: int | None = None
    ids: dict[int, int] = field(default_factory=dict)
    merged: MergedProcesses | None = None
    calls: Calls = NO_CALLS
    lead: Lead | None = None
    device_clocks: DeviceClocks = NO_DEVICE_CLOCKS
    named: NamedPrograms = NO_NAMES
    called: HostCalls | None = None
    executed: Table | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether part of the file could not be read."""
        is_cut = any(own.check == "truncated" and own.verdict != "ok" for own in self.checks)
        return bool(self.damage) or is_cut

    def take_work(self) -> list[Table]:
        """The work, which the record gives up: it is large, and soon there in another order."""
        work, self.work = self.work, []
        return work

    def drop(self, what: str, count: int) -> None:
        """Count events that are left out."""
        if count:
            self.dropped[what] += int(count)


_LATEST_NS = 2**62  # 146 years: no capture, and no date, lies beyond


def sound(start_ns: Int64s, end_ns: Int64s) -> Flags:
    """Whether stamps can be true: a negative length or a start at or before 0 cannot."""
    return (start_ns > 0) & (start_ns <= end_ns) & (end_ns < _LATEST_NS)


def names_that(names: Iterable[str], test: Callable[[str], object]) -> Flags:
    """A flag per name, and a last one, False, for events whose name is unknown (place -1)."""
    return np.array([*(bool(test(name)) for name in names), False])


# What a reader found out about several processes that lie in one file.


@dataclass(frozen=True)
class MergedProcesses:
    """``found`` counts the processes of a run that a file holds.

    ``mixed`` says why work of several cannot be told apart, ``unpaired`` of which part it is not
    known whose it is or what is missing, ``strange`` names processes that are neither a device that
    moeprof knows nor a host. Each is empty where there is nothing to say.
    """

    found: int = 1
    mixed: str = ""
    unpaired: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()


# What does one process contribute to a trace, before all are put together?


@dataclass(frozen=True)
class Host:
    """What one process recorded, read. All stamps count from the start of its capture.

    ``models`` names the devices that the file knows, by ordinal; ``process`` is the place of the
    process in the run, -1 where it is not known. ``started_ns`` and ``stopped_ns`` are when its
    capture began and ended, in ns since 1970 on the host's own clock, 0 where the file does not
    say. ``file`` is where the host plane can be read again, None where the format has none, and
    ``zero_ns`` what is taken off its stamps. ``base_ns`` is what stamps count from where the file
    states that, in ns since 1970, else 0. ``machine`` is an id of the machine, where capture wrote
    one down: processes of one machine share its clock. ``framework``: whose program it was.
    ``side`` has `LAUNCHES` and `HOST_EVENTS` where they were read with the rest, with stamps and
    names of their own.
    """

    name: str
    platform: str
    jax_version: str
    record: Record
    programs: Mapping[int, Program]
    models: Mapping[int, str]
    messages: tuple[str, ...]
    counting: Counting | None
    process: int = -1
    started_ns: int = 0
    stopped_ns: int = 0
    file: Path | None = None
    zero_ns: int = 0
    base_ns: int = 0
    machine: str = ""
    framework: str = JAX
    side: tuple[Table, Table] | None = None
