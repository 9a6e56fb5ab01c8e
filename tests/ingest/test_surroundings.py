"""Recorded steps against those beside them, and the state of GPUs, as laws of the input."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from moeprof.ingest.sources.window_record import WindowRecord, read_window
from moeprof.ingest.trust.surroundings import device_state, laws_of_window, profiling_cost

MS = 1_000_000
CHEAP = WindowRecord(
    "",
    before_ns=(100 * MS, 102 * MS, 98 * MS),
    in_ns=(103 * MS, 103 * MS),
    after_ns=(100 * MS, 101 * MS),
    drain_ns=2 * MS,
    start_ns=30 * MS,
    stop_ns=1500 * MS,
)


def test_recorded_steps_are_compared_with_those_on_both_sides():
    law = profiling_cost(CHEAP)
    assert (law.verdict, law.expected, law.found, law.unit) == ("ok", 100 * MS, 103 * MS, "ns")
    assert law.detail == (
        "recorded steps took 103.0 ms, those beside them 100.0 ms: profiling costs 3.0 %; "
        "the profiler took 30.00 ms to start and 1.500 s to stop, in no step"
    )
    assert not law.withholds_any


def test_more_than_a_twentieth_is_a_warning_that_withholds_nothing():
    law = profiling_cost(replace(CHEAP, in_ns=(130 * MS, 126 * MS)))
    assert law.verdict == "warn"
    assert "profiling costs 28.0 %" in law.detail
    assert "steps that wait for launches grow most" in law.detail
    assert not law.withholds_any


@pytest.mark.parametrize(
    ("window", "verdict"),
    [
        (replace(CHEAP, in_ns=(90 * MS,)), "ok"),
        # Steps vary by more than that without the profiler.
        (replace(CHEAP, before_ns=(120 * MS, 130 * MS, 80 * MS), in_ns=(110 * MS,)), "ok"),
        (replace(CHEAP, in_ns=(95 * MS, 150 * MS, 151 * MS)), "ok"),
        (replace(CHEAP, in_ns=()), "unchecked"),
        (replace(CHEAP, before_ns=(100 * MS,), after_ns=()), "unchecked"),
        (replace(CHEAP, drain_ns=51 * MS, in_ns=(200 * MS,)), "unchecked"),
        (WindowRecord(""), "unchecked"),
    ],
)
def test_noise_is_not_blamed_and_what_was_not_timed_is_not_checked(window, verdict):
    assert profiling_cost(window).verdict == verdict


def state(**facts):
    usual = {"sm_clock_mhz": 1900, "sm_clock_max_mhz": 1980, "power_mw": 500_000,
             "throttled": [], "others": 0}  # fmt: skip
    return usual | facts


def states(*of_gpu_1):
    """Samples in which GPU 0 is as usual."""
    return WindowRecord("", samples=tuple({"0": state(), "1": one} for one in of_gpu_1))


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (state(throttled=["power cap"]), "GPU 1 was throttled (power cap)"),
        (state(sm_clock_mhz=990), "GPU 1 ran at 990 of 1980 MHz (50.0 %)"),
        (state(others=2), "GPU 1 was used by 2 other processes"),
    ],
)
def test_a_gpu_that_is_slowed_down_or_shared_is_named(gpu, said):
    law = device_state(states(state(), gpu))
    assert (law.verdict, law.detail, law.found) == ("warn", said, 1)
    assert not law.withholds_any


def test_gpus_at_their_clocks_and_alone_are_good_and_idle_clocks_at_the_start_do_not_count():
    law = device_state(states(state(sm_clock_mhz=345, power_mw=90_000), state()))
    assert (law.verdict, law.detail) == (
        "ok",
        "no GPU was throttled or shared, 345 to 1900 MHz, 90 to 500 W",
    )


@pytest.mark.parametrize("samples", [(), ({},), ({"0": {}},)])
def test_without_samples_nothing_is_checked(samples):
    assert device_state(WindowRecord("", samples=samples)).verdict == "unchecked"


def test_a_process_without_gpus_has_no_law_on_them():
    assert [law.check for law in laws_of_window(CHEAP)] == ["profiling_cost"]
    with_gpus = laws_of_window(replace(CHEAP, has_gpus=True))
    assert [(law.check, law.verdict) for law in with_gpus] == [
        ("profiling_cost", "ok"),
        ("device_state", "unchecked"),
    ]


def run_folder(folder, window, memory):
    meta = {
        "schema": "moeprof.run/1",
        "processes": [
            {"process_index": 4, "platform": "gpu", "windows": [window]},
            {"process_index": 5},
        ],
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "memory").mkdir()
    (folder / "memory" / "p4.json").write_text(json.dumps(memory))
    return folder / "plugins" / "profile" / "s" / "h-p4.xplane.pb"


def test_the_record_of_a_profile_is_found_by_its_place(tmp_path):
    window = {
        "file": "plugins/profile/s/h-p4.xplane.pb",
        "step_times": {"before_ns": [7, 8], "in_ns": [9], "after_ns": [5]},
        "drain_ns": 3,
        "profiler_start_ns": 11,
        "profiler_stop_ns": None,
    }
    memory = {"windows": [{"states": [{"epoch_ns": 1, "devices": {"0": {"others": 1}}}]}]}
    profile = run_folder(tmp_path, window, memory)
    assert read_window(tmp_path, profile) == WindowRecord(
        "process 4: ", (7, 8), (9,), (5,), 3, 11, None, ({"0": {"others": 1}},), has_gpus=True
    )
    assert read_window(tmp_path, profile.with_name("h-p5.xplane.pb")) is None
    assert read_window(None, profile) is None


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, [None], [[1]], {"a": 1}, [-1, 2.5, True]])
def test_a_damaged_record_tells_nothing(tmp_path, junk):
    window = {
        "file": "plugins/profile/s/h-p4.xplane.pb",
        "step_times": {"before_ns": junk, "in_ns": junk},
        "drain_ns": junk if junk != 3 else -3,
    }
    profile = run_folder(tmp_path, window, {"windows": [{"states": junk}]})
    assert read_window(tmp_path, profile) == WindowRecord("process 4: ", has_gpus=True)
