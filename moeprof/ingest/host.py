"""Question: what does one process contribute to a trace, before all are put together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeprof.ingest.programs import Program
from moeprof.ingest.steps import Counting, Cut, Execution
from moeprof.ingest.work import Record


@dataclass(frozen=True)
class Host:
    """One process's file, read. ``zero_ns`` is taken off every stamp."""

    name: str
    platform: str
    jax_version: str
    zero_ns: int
    record: Record
    programs: dict[int, Program]
    messages: tuple[str, ...]
    counting: Counting | None


@dataclass(frozen=True)
class HostTables:
    """What one process contributes to the frames, times in ns since its capture began."""

    host: Host
    self_ps: list[int]
    executions: list[tuple[int, Execution]]  # (device, execution)
    cut: Cut
    step_of: Mapping[tuple[int, int], int]  # (module, run id) -> step
    work_steps: list[int]  # of each piece of work, -1 for none
    stray_ns: int  # self time of work inside a step's span that belongs to no step
