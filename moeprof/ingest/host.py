"""Question: what does one process contribute to a trace, before all are put together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.planes.record import Record
from moeprof.ingest.sources.run_record import Counting


@dataclass(frozen=True)
class Host:
    """What one process recorded, read. All stamps count from the start of its capture.

    ``models`` names the devices that the file knows, by ordinal; ``process`` is the place of the
    process in the run, -1 where it is not known. ``started_ns`` and ``stopped_ns`` are when its
    capture began and ended, in ns since 1970 on the host's own clock, 0 where the file does not
    say. ``file`` is where the host plane can be read again, None where the format has none, and
    ``zero_ns`` what is taken off its stamps. ``base_ns`` is what stamps count from where the file
    states that, in ns since 1970, else 0.
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
