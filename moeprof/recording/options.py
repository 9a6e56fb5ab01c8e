"""Question: what was asked of a capture? One value that the parent hands to the child as JSON.

Profiler options are checked here: JAX stores unknown ``advanced_configuration`` keys without a
word, and older versions unknown attributes too, so a misspelt option silently changes nothing. The
lists are those of `jax.profiler.ProfileOptions` (jax 0.7 to 0.12) and of the keys that the CUDA and
TPU plugins read (JAX documentation, "Profiling computation", sections on GPU and TPU options).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from moeprof.errors import CaptureError

CONFIG_VARIABLE = "MOEPROF_CAPTURE_CONFIG"  # read and removed by the child before the script runs
RUN_DIR_VARIABLE = "MOEPROF_RUN_DIR"  # stays: the routing log writes there
RECORDING_VARIABLE = "MOEPROF_RECORDING"  # stays too: what a process writes bears this id

Value = int | bool | str

ATTRIBUTES: dict[str, type] = {
    "enable_hlo_proto": bool,
    "host_tracer_level": int,
    "include_dataset_ops": bool,
    "python_tracer_level": int,
}

SET_BY_MOEPROF = (
    "duration_ms",
    "raise_error_on_start_failure",
    "repository_path",
    "session_id",
    "start_timestamp_ns",
)

ADVANCED: dict[str, type] = {
    "gpu_dump_graph_node_mapping": bool,
    "gpu_enable_cupti_activity_graph_trace": bool,
    "gpu_enable_nvtx_tracking": bool,
    "gpu_max_activity_api_events": int,
    "gpu_max_annotation_strings": int,
    "gpu_max_callback_api_events": int,
    "gpu_num_chips_to_profile_per_task": int,
    "gpu_pm_sample_buffer_size_per_gpu_mb": int,
    "gpu_pm_sample_counters": str,
    "gpu_pm_sample_interval_us": int,
    "tpu_num_chips_to_profile_per_task": int,
    "tpu_num_sparse_core_tiles_to_trace": int,
    "tpu_num_sparse_cores_to_trace": int,
    "tpu_trace_mode": str,
}

LEAST_STEPS, MOST_STEPS = 3, 8
"""Steps of a window whose number nobody gave: two intervals tell no noise from a change."""
MOST_SECONDS, MOST_BYTES = 20.0, 512 * 2**20
"""What such a window may take beyond its least steps; bytes are of the process's memory, which
holds more than the profile that is written of it."""

LEVELS = {"host_tracer_level": 3, "python_tracer_level": 1}  # highest level that has a meaning


def _defaults() -> dict[str, Value]:
    # Python frames fill a trace and hide device work; host level 1 is the lowest that keeps the
    # CPU backend's op events; the HLO gives every op its name and source line.
    return {"enable_hlo_proto": True, "host_tracer_level": 1, "python_tracer_level": 0}


@dataclass(frozen=True)
class ProfilerSettings:
    """Attributes and advanced keys of `jax.profiler.ProfileOptions`, checked."""

    attributes: dict[str, Value] = field(default_factory=_defaults)
    advanced: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class CaptureOptions:
    """The window and where it goes. Steps are counted after compilation has settled.

    ``recording`` is an id of its own for each capture: all that its processes write bears it.
    """

    run_dir: Path
    skip_steps: int = 1
    record_steps: int | None = None  # None is as many as LEAST_STEPS to MOST_STEPS that fit
    record_seconds: float | None = None  # replaces record_steps: whole steps until so long passed
    every_steps: int | None = None  # a further window each so many steps
    hosts: tuple[int, ...] | None = None  # process indices that record; None is all
    export_timeout_s: float | None = None  # None waits as long as it takes
    profiler: ProfilerSettings = field(default_factory=ProfilerSettings)
    routing: str = "off"  # or "auto": indices of the step's routers become results of it
    asked_for: str = ""  # the folder that was named for the run; empty where it was left open
    in_process: bool = False  # asked for by the training code, which keeps its signals to itself
    recording: str = field(default_factory=lambda: uuid4().hex)

    @property
    def is_limited(self) -> bool:
        """Whether the number of steps is left to what they take."""
        return self.record_steps is None and self.record_seconds is None

    @property
    def enough_steps(self) -> int | None:
        """Steps with which a window is complete though the script ends in it, if fewer will do."""
        return LEAST_STEPS if self.is_limited else None

    @property
    def most_steps(self) -> int | None:
        """Steps of a window at most; None where seconds tell. Repeated ones record half at most."""
        if not self.is_limited:
            return None if self.record_seconds is not None else self.record_steps
        return max(LEAST_STEPS, min(MOST_STEPS, (self.every_steps or 2 * MOST_STEPS) // 2))

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


def parse_profiler_options(pairs: Iterable[str]) -> ProfilerSettings:
    """Check ``KEY=VALUE`` texts against the known options.

    Raises:
        CaptureError: a pair has no ``=``, its key is unknown (the nearest known one is named), or
            its value is not of the option's type.
    """
    attributes = _defaults()
    advanced: dict[str, Value] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise CaptureError(f"profiler option: expected KEY=VALUE, found {pair!r}.")
        if key in ATTRIBUTES:
            attributes[key] = _level(key, _value(key, ATTRIBUTES[key], text))
        elif key in ADVANCED:
            advanced[key] = _value(key, ADVANCED[key], text)
        else:
            raise CaptureError(_unknown(key))
    return ProfilerSettings(attributes, advanced)


def _value(key: str, kind: type, text: str) -> Value:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise CaptureError(f"profiler option {key}: expected true or false, found {text!r}.")
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise CaptureError(f"profiler option {key}: expected a number from 0 up, found {text!r}.")
    return number


def _level(key: str, value: Value) -> Value:
    highest = LEVELS.get(key)
    if highest is not None and int(value) > highest:
        raise CaptureError(f"profiler option {key}: expected 0 to {highest}, found {value}.")
    return value


def _unknown(key: str) -> str:
    if key in SET_BY_MOEPROF:
        return f"profiler option {key}: moeprof sets it itself, leave it out."
    known = [*ATTRIBUTES, *ADVANCED]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"profiler option {key!r} is unknown; did you mean {near[0]!r}?"
    return f"profiler option {key!r} is unknown; known are {', '.join(known)}."
