"""Question: what was asked of a capture? One value that the parent hands to the child as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from moeprof.recording.profiler_options import ProfilerSettings

CONFIG_VARIABLE = "MOEPROF_CAPTURE_CONFIG"  # read and removed by the child before the script runs
RUN_DIR_VARIABLE = "MOEPROF_RUN_DIR"  # stays: the routing log writes there
RECORDING_VARIABLE = "MOEPROF_RECORDING"  # stays too: what a process writes bears this id


@dataclass(frozen=True)
class CaptureOptions:
    """The window and where it goes. Steps are counted after compilation has settled.

    ``recording`` is an id of its own for each capture: all that its processes write bears it.
    """

    run_dir: Path
    skip_steps: int = 1
    record_steps: int = 3
    record_seconds: float | None = None  # replaces record_steps: whole steps until so long passed
    every_steps: int | None = None  # a further window each so many steps
    hosts: tuple[int, ...] | None = None  # process indices that record; None is all
    export_timeout_s: float | None = None  # None waits as long as it takes
    profiler: ProfilerSettings = field(default_factory=ProfilerSettings)
    recording: str = field(default_factory=lambda: uuid4().hex)

    def to_json(self, *, message_fd: int) -> str:
        """This value and the descriptor that the child reports to, as one JSON text."""
        return json.dumps({**asdict(self), "run_dir": str(self.run_dir), "message_fd": message_fd})

    @staticmethod
    def from_json(text: str) -> tuple[CaptureOptions, int]:
        """The options and the message descriptor out of `to_json`'s text."""
        values = json.loads(text)
        message_fd = int(values.pop("message_fd"))
        values["run_dir"] = Path(values["run_dir"])
        values["hosts"] = None if values["hosts"] is None else tuple(values["hosts"])
        values["profiler"] = ProfilerSettings(**values["profiler"])
        return CaptureOptions(**values), message_fd
