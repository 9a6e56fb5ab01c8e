"""Question: which profiler options exist, and is what the user wrote one of them?

JAX stores unknown ``advanced_configuration`` keys without a word, and older versions unknown
attributes too, so a misspelt option silently changes nothing. The lists below are those of
`jax.profiler.ProfileOptions` (jax 0.7 to 0.12) and of the keys that the CUDA and TPU plugins read
(JAX documentation, "Profiling computation", sections on GPU and TPU options).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from moeprof.errors import CaptureError

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
