"""Which steps are recorded, of scripts as users write them."""

from __future__ import annotations

import json

import pyarrow.parquet
import pytest
from jax.profiler import ProfileData

from moeprof.ingest.run import open_run
from moeprof.routing import KEPT_STEPS
from moeprof.tables.routing import RECORDING_KEY


def annotations_in(profile, name):
    """Step numbers of the events called `name` in a profile, read by JAX itself."""
    data = ProfileData.from_file(str(profile))  # planes point into it: it has to outlive them
    return [
        dict(event.stats)["step_num"]
        for plane in data.planes
        for line in plane.lines
        for event in line.events
        if event.name == name
    ]


def test_calls_of_the_jitted_step_are_counted_where_nothing_is_annotated(capture):
    run = capture("plain_loop.py", "9", "--flag")
    assert run.exit_code == 0
    assert run.stdout.splitlines()[0] == "steps done: 9 argv: ['9', '--flag']"
    # Call 0 compiles, 1 and 2 settle, 3 is skipped.
    assert (run.window["first_step"], run.window["last_step"]) == (4, 6)
    assert run.window["counted_by"] == "calls of train_step"
    assert run.window["closed_because"] == "complete"
    assert run.window["started_epoch_ns"] < run.window["next_step_start_ns"]
    assert run.window["next_step_start_ns"] <= run.window["ended_epoch_ns"]  # the call closes it
    assert run.meta["status"] == "complete"
    assert run.meta["schema"] == "moeprof.run/1"
    assert run.meta["exit_code"] == 0
    assert [str(path.relative_to(run.run_dir)) for path in run.profiles] == run.process["files"]
    assert run.profiles[0].name.endswith("-p0.xplane.pb")
    assert "recording 3 steps (4–6)" in run.stderr
    assert "Exception" not in run.stderr
    assert "sitecustomize" not in run.stderr


# jaxlib's event statistics on Python 3.12; as an error it would abort inside C++
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
def test_annotated_steps_keep_the_numbers_of_the_script(capture):
    run = capture("annotated_loop.py", options=("--skip", "0", "--steps", "2"))
    assert run.exit_code == 0
    assert (run.window["first_step"], run.window["last_step"]) == (103, 104)
    assert run.window["counted_by"] == "annotation train"
    assert run.window["steps"] == 2
    # step 105 begins when the window is closed: less what that took it is about when it closed
    assert run.window["started_epoch_ns"] < run.window["next_step_start_ns"]
    assert annotations_in(run.profiles[0], "train") == [103, 104]


def test_host_and_memory_files_say_what_surrounded_the_window(capture):
    run = capture("plain_loop.py", env={"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"})
    host = json.loads((run.run_dir / "host" / "p0.json").read_text())
    assert host["environment"]["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
    assert any(event["event"] == "backend_compile_duration" for event in host["compile_events"])
    assert host["affinity_cores"]
    memory = json.loads((run.run_dir / "memory" / "p0.json").read_text())
    assert host["recording"] == memory["recording"] == run.process["recording"] != ""
    (window,) = memory["windows"]
    assert window["before"]["host"]["resident_bytes"] > 0
    assert window["after"]["devices"] == {"0": None}  # the CPU backend has no allocator statistics
    step = next(one for one in memory["programs"] if one["program"] == "jit_train_step")
    # weights 64 x 64 and batch 32 x 64 in float32; the result is as large as the weights
    assert step["argument_bytes"] == 4 * (64 * 64 + 32 * 64)
    assert step["output_bytes"] == 4 * 64 * 64


def test_the_largest_program_is_the_step_and_the_scripts_own_flags_count(capture):
    run = capture("eight_devices.py")
    assert run.exit_code == 0
    assert run.stdout.splitlines()[0] == "8 devices, loss True"
    # evaluate is called twice as often, but the step with its gradient compiles longer
    assert run.window["counted_by"].endswith("train_step")
    assert run.meta["mesh"] == {"expert": 4, "fsdp": 2}
    assert run.meta["xla_flags"] == "--xla_force_host_platform_device_count=8"
    assert len(run.process["devices"]) == 8


def test_further_windows_are_taken_every_so_many_steps(capture):
    run = capture("plain_loop.py", "20", options=("--steps", "2", "--every", "6"))
    assert run.exit_code == 0
    windows = [(one["first_step"], one["last_step"]) for one in run.process["windows"]]
    assert windows == [(4, 5), (10, 11), (16, 17)]
    assert len(run.profiles) == 3


def test_a_window_in_seconds_holds_whole_steps(capture):
    run = capture("plain_loop.py", "40", options=("--seconds", "0.000001"))
    assert run.window["steps"] == 1
    assert run.window["closed_because"] == "complete"


def test_routing_of_the_window_survives_a_long_run(capture):
    run = capture("records_routing.py", str(KEPT_STEPS + 100))
    window = range(run.window["first_step"], run.window["last_step"] + 1)
    (path,) = (run.run_dir / "routing").glob("p0.parquet")
    assert (
        pyarrow.parquet.read_schema(path).metadata[RECORDING_KEY].decode()
        == run.process["recording"]
    )
    steps = pyarrow.parquet.read_table(path).column("step").to_pylist()
    assert len(window) == 3
    assert set(window) <= set(steps)


def test_steps_are_timed_on_both_sides_of_the_window(capture):
    window = capture("plain_loop.py", "20").window
    times = window["step_times"]
    # Call 0 compiles, 1 to 3 are before the window, 4 to 6 in it; 5 more are timed.
    assert [len(times[name]) for name in ("before_ns", "in_ns", "after_ns")] == [3, 3, 5]
    assert all(duration > 0 for durations in times.values() for duration in durations)
    assert window["profiler_start_ns"] > 0
    assert 0 < window["profiler_stop_ns"] <= window["export_s"] * 1e9
    assert window["drain_ns"] >= 0


def test_a_script_that_ends_with_its_window_has_the_steps_before_it(capture):
    run = capture("plain_loop.py", "7")
    assert run.exit_code == 0
    times = run.window["step_times"]
    assert [len(times[name]) for name in ("before_ns", "in_ns", "after_ns")] == [3, 2, 0]


def test_the_law_on_the_cost_of_profiling_is_in_the_record(capture):
    trust = open_run(capture("plain_loop.py", "20").run_dir).trust
    (law,) = (law for law in trust if law.check == "profiling_cost")
    assert law.verdict in ("ok", "warn", "unchecked")  # by how fast this machine is
    assert "not timed" not in law.detail
    assert not any(law.check == "device_state" for law in trust)
