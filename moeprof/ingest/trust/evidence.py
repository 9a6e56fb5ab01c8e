"""Question: what do the checks of the trust record look at?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from moeprof.columns.table import Table
from moeprof.ingest.placing.executions import NONE_UNLAUNCHED, Unlaunched
from moeprof.ingest.placing.lost_launches import LostLaunches
from moeprof.ingest.placing.lost_pieces import NOTHING_MISSED, LostPieces
from moeprof.ingest.placing.step import StepWays
from moeprof.ingest.placing.too_long import Endless
from moeprof.ingest.planes.record import DeviceClocks, Lead, NamedPrograms
from moeprof.ingest.sources.beside import NOTHING_BESIDE, Beside
from moeprof.ingest.sources.processes import Processes, Ranked
from moeprof.ingest.sources.routing import Routing
from moeprof.tables.law import JAX, Law
from moeprof.tables.trace import HostClock


@dataclass(frozen=True)
class Sums:
    """Counts and times (ns) of device work, without what only waits: of several hosts the sums.

    ``found`` has an instruction or a name, ``by_order`` has it by its order in a GPU graph,
    ``unsure`` with low confidence; ``hidden`` is in command buffers. ``cut`` is shorter than it was
    recorded, ``instant`` are kernels without a length.
    """

    work: int = 0
    self_ns: int = 0
    in_steps_ns: int = 0
    without_program_ns: int = 0
    found: int = 0
    found_ns: int = 0
    by_order: int = 0
    by_order_ns: int = 0
    unsure_ns: int = 0
    sure_ns: int = 0
    hidden: int = 0
    hidden_ns: int = 0
    cut: int = 0
    duration_ns: int = 0
    recorded_ns: int = 0
    kernels: int = 0
    instant: int = 0

    def __add__(self, other: Sums) -> Sums:
        """The sums over both."""
        return Sums(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Stream(NamedTuple):
    """A stream of a GPU in one step: how long its work covers, and how much counts again, in ns."""

    covered: int
    twice: float
    line: str
    host: str
    device: int
    step: int

    @property
    def share(self) -> float:
        """Of the time that it covers, what counts again."""
        return self.twice / max(self.covered, 1)


@dataclass(frozen=True)
class Tally:
    """What the checks count of device work; the tallies of several hosts add up.

    ``places`` are the hosts and devices with work, ``modules`` the programs by host, ``has_ops``
    says by host whether any work has an instruction. ``worst`` is the stream with the largest share
    of time that counts twice, None without streams; ``are_within`` whether all of them may be.
    """

    pieces: int
    places: frozenset[tuple[str, int]]
    modules: Mapping[str, frozenset[int]]
    has_ops: Mapping[str, bool]
    sums: Sums
    worst: Stream | None
    are_within: bool

    def __add__(self, other: Tally) -> Tally:
        """Of the hosts of both, whose names differ; of equal streams the first counts."""
        streams = [each.worst for each in (self, other) if each.worst is not None]
        return Tally(
            self.pieces + other.pieces,
            self.places | other.places,
            {**self.modules, **other.modules},
            {**self.has_ops, **other.has_ops},
            self.sums + other.sums,
            max(streams, key=lambda stream: stream.share, default=None),
            self.are_within and other.are_within,
        )


NOTHING_COUNTED = Tally(0, frozenset(), {}, {}, Sums(), None, True)


@dataclass(frozen=True)
class HostLosses:
    """What a host's record lacks: work of launches, devices, ends of last pieces.

    ``knows_devices``: whether the host tells which devices ran something; ``unlaunched``: which
    launches that work names the host lacks, ``pieces`` what executions lack of their program.
    """

    host: str
    lost: LostLaunches
    silent: tuple[int, ...]
    endless: tuple[Endless, ...]
    knows_devices: bool
    unlaunched: Unlaunched = NONE_UNLAUNCHED
    pieces: LostPieces = NOTHING_MISSED


@dataclass(frozen=True)
class Evidence:
    """All that the checks look at.

    ``tally`` counts the device work. ``hlo_ops`` has the programs that ran, ``programs`` counts all
    of the profile. ``messages`` are the profiler's own errors and warnings, ``models`` what it
    calls the devices, ``doubts`` what else a step might be, ``outliers`` the first events whose
    stamps cannot be, ``not_serial`` streams on which pieces overlap all the time. ``not_aligned``
    says by host why its clock could not be. ``windows`` has the name of each host and when its
    capture began and ended, in ns since 1970, 0 where that is not known; ``damaged`` names hosts
    part of whose file could not be read; ``strange`` names processes that are of no known kind;
    ``found`` are checks that a reader of another format made itself. ``ranked`` are the ranks of
    the devices and what they follow from. By the name of the host: ``step_ways`` compares the ways
    to its steps, ``leads`` is how far its devices are behind its launches, ``device_clocks`` how
    these stand to each other, ``named`` which programs its events name; ``losses`` are what each
    host's record lacks. ``beside`` compares what lies beside the profiles with them, ``routing`` is
    what may be used of the recorded routing. ``framework`` is whose program ran.
    """

    tally: Tally
    hlo_ops: Table
    programs: int
    steps: Table
    dropped: Counter[str]
    damage: Sequence[str]
    messages: Sequence[str]
    models: Sequence[str]
    read: int
    doubts: Sequence[str]
    stray_ns: int
    outliers: Sequence[str]
    not_serial: Sequence[str]
    hosts: Sequence[str]
    clocks: Sequence[HostClock]
    not_aligned: Mapping[str, str]
    processes: Processes
    windows: Sequence[tuple[str, int, int]]
    found: Sequence[Law] = ()
    damaged: Sequence[str] = ()
    ranked: Ranked | None = None
    strange: Sequence[str] = ()
    step_ways: Sequence[tuple[str, StepWays]] = ()
    leads: Sequence[tuple[str, Lead | None]] = ()
    device_clocks: Sequence[tuple[str, DeviceClocks]] = ()
    named: Sequence[tuple[str, NamedPrograms]] = ()
    losses: Sequence[HostLosses] = ()
    beside: Beside = NOTHING_BESIDE
    routing: Routing = field(default_factory=Routing)
    framework: str = JAX
