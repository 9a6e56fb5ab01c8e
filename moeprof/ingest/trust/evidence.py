"""Question: what do the checks of the trust record look at?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from moeprof.ingest.placing.executions import NONE_UNLAUNCHED, Unlaunched
from moeprof.ingest.placing.lost_launches import LostLaunches
from moeprof.ingest.placing.lost_pieces import NOTHING_MISSED, LostPieces
from moeprof.ingest.placing.step import StepWays
from moeprof.ingest.placing.too_long import Endless
from moeprof.ingest.planes.record import DeviceClocks, Lead, NamedPrograms
from moeprof.ingest.sources.beside import NOTHING_BESIDE, Beside
from moeprof.ingest.sources.processes import Processes, Ranked
from moeprof.ingest.sources.routing import Routing
from moeprof.tables.law import Law
from moeprof.tables.trace import HostClock
from moeprof.tables.waits import work_of


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

    ``hlo_ops`` has the programs that ran, ``programs`` counts all of the profile. ``messages`` are
    the profiler's own errors and warnings, ``models`` what it calls the devices, ``doubts`` what
    else a step might be, ``outliers`` the first events whose stamps cannot be, ``not_serial``
    streams on which pieces overlap all the time. ``not_aligned`` says by host why its clock could
    not be. ``windows`` has the name of each host and when its capture began and ended, in ns
    since 1970, 0 where that is not known; ``damaged`` names hosts part of whose file could not be
    read; ``strange`` names processes that are of no known kind; ``found`` are checks that a reader
    of another format made itself. ``ranked`` are the ranks of the devices and what they follow
    from. By the name of the host: ``step_ways`` compares the ways to its steps, ``leads`` is how
    far its devices are behind its launches, ``device_clocks`` how these stand to each other,
    ``named`` which programs its events name; ``losses``
    are what each host's record lacks. ``beside`` compares what lies beside the profiles with them,
    ``routing`` is what may be used of the recorded routing.
    """

    events: pd.DataFrame
    hlo_ops: pd.DataFrame
    programs: int
    steps: pd.DataFrame
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

    @cached_property
    def work(self) -> pd.DataFrame:
        """``events`` without those that only wait."""
        return work_of(self.events)
