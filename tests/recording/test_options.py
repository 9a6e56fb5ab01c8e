"""Options on their way into the child, and the profiler's own."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

from moeprof.errors import CaptureError
from moeprof.recording.export import profile_options
from moeprof.recording.options import (
    ATTRIBUTES,
    CaptureOptions,
    ProfilerSettings,
    parse_profiler_options,
)


def test_options_reach_the_child_as_they_are(tmp_path):
    options = CaptureOptions(
        tmp_path,
        hosts=(0, 3),
        export_timeout_s=2.5,
        profiler=ProfilerSettings({"host_tracer_level": 2}, {"tpu_trace_mode": "TRACE_COMPUTE"}),
    )
    assert CaptureOptions.from_json(options.to_json(message_fd=7)) == (options, 7)


def test_the_python_tracer_is_off_and_the_program_is_kept_by_default():
    options = profile_options(parse_profiler_options([]))
    assert options.python_tracer_level == 0
    assert options.host_tracer_level == 1
    assert options.enable_hlo_proto is True


def test_known_options_reach_the_profiler(monkeypatch):
    # Stands in for JAX's own, whose advanced_configuration jax 0.7 cannot give back.
    given = SimpleNamespace(host_tracer_level=1, python_tracer_level=1, enable_hlo_proto=False)
    monkeypatch.setattr(jax.profiler, "ProfileOptions", lambda: given)
    settings = parse_profiler_options(
        ["host_tracer_level=2", "gpu_enable_nvtx_tracking=yes", "gpu_max_annotation_strings=99"]
    )
    options = profile_options(settings)
    assert options.host_tracer_level == 2
    assert options.advanced_configuration == {
        "gpu_enable_nvtx_tracking": True,
        "gpu_max_annotation_strings": 99,
    }
    assert not hasattr(options, "raise_error_on_start_failure")  # this version has none


def test_every_attribute_offered_exists_in_jax():
    assert all(hasattr(jax.profiler.ProfileOptions(), name) for name in ATTRIBUTES)


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("python_trace_level=1", "did you mean 'python_tracer_level'"),
        ("gpu_max_callback_api_event=5", "did you mean 'gpu_max_callback_api_events'"),
        ("colour=red", "unknown; known are enable_hlo_proto"),
        ("session_id=x", "moeprof sets it itself"),
        ("gpu_max_annotation_strings=many", "expected a number from 0 up, found 'many'"),
        ("enable_hlo_proto=maybe", "expected true or false, found 'maybe'"),
        ("python_tracer_level=2", "expected 0 to 1, found 2"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(pair, text):
    with pytest.raises(CaptureError, match=text.replace("(", r"\(")):
        parse_profiler_options([pair])
