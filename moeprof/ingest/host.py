"""Question: what does one process contribute to a trace, before all are put together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from moeprof.ingest.programs import Program
from moeprof.ingest.steps import Counting, Cut
from moeprof.ingest.work import Record


@dataclass(frozen=True)
class Host:
    """One process's file, read. All stamps count from the start of its capture.

    ``models`` names the devices that the file knows, by ordinal; ``process`` is the place of the
    process in the run, -1 where it is not known.
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


@dataclass(frozen=True)
class HostTables:
    """What one process contributes to the frames besides its work.

    ``executions`` has
    device, module, run_id, start_ns, end_ns, busy_ns, ops; ``step_of`` gives the step of (module,
    run id). ``not_serial`` names the streams on which pieces overlap all the time.
    """

    host: Host
    executions: pd.DataFrame
    cut: Cut
    step_of: Mapping[tuple[int, int], int]
    stray_ns: int
    not_serial: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
