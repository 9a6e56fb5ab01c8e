"""The state of GPUs, from stand-ins of NVML and AMD SMI; the script never waits for either."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from moeprof.recording import device_facts
from moeprof.recording.device_facts import DeviceStates, amd, find_source, nvidia, others

OTHER = 2**22 + 7  # beyond any process id of Linux


def nvml(**changes):
    """As the library answers: handles are names, GPU 1 is capped and hot."""
    base = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
        "nvmlDeviceGetHandleByUUID": lambda name: name,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1755 if kind == 1 else 0,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetPowerUsage": lambda handle: 612_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetTemperature": lambda handle, kind: 61,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x45 if handle == "gpu3" else 1,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=os.getpid())],
    }
    return SimpleNamespace(**{k: v for k, v in (base | changes).items() if v is not None})


def test_nvml_gives_clocks_power_reasons_and_others():
    state = nvidia(nvml(), {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert state(0) == {
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "power_mw": 612_000,
        "power_limit_mw": 700_000,
        "temperature_c": 61,
        "throttled": [],
        "others": 0,
    }
    assert state(1)["throttled"] == ["power cap", "hardware thermal slowdown"]


def test_gpus_are_found_by_their_place_or_their_name():
    asked = []
    library = nvml(nvmlDeviceGetHandleByUUID=lambda name: asked.append(name) or name)
    nvidia(library, {"CUDA_VISIBLE_DEVICES": "GPU-abc"})(0)
    assert asked == ["GPU-abc"]
    assert nvidia(nvml(), {})(3)["throttled"] == ["power cap", "hardware thermal slowdown"]


def test_what_a_library_does_not_say_is_left_out():
    def refuses(*_):
        raise RuntimeError("not supported")

    library = nvml(
        nvmlDeviceGetPowerUsage=refuses,
        nvmlDeviceGetCurrentClocksEventReasons=None,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x20,
    )
    state = nvidia(library, {})(0)
    assert "power_mw" not in state
    assert state["throttled"] == ["software thermal slowdown"]


def test_amd_smi_gives_clocks_power_and_others():
    smi = SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["a", "b"],
        AmdSmiClkType=SimpleNamespace(GFX="gfx"),
        amdsmi_get_clock_info=lambda handle, kind: {"clk": 1500, "max_clk": 2100},
        amdsmi_get_power_info=lambda handle: {"current_socket_power": 700},
        amdsmi_get_gpu_process_list=lambda handle: [{"pid": os.getpid()}, {"pid": OTHER}],
    )
    assert amd(smi)(1) == {
        "sm_clock_mhz": 1500,
        "sm_clock_max_mhz": 2100,
        "power_mw": 700_000,
        "others": 1,
    }


@pytest.mark.parametrize(
    ("pids", "expected"),
    [
        ((), 0),
        ((os.getpid(),), 0),
        ((os.getpid(), OTHER), 1),
        ((OTHER,), 0),  # in a container: this process by its number outside
        ((OTHER, OTHER + 1), 1),
    ],
)
def test_other_processes_are_told_from_this_one(pids, expected):
    assert others(pids) == expected


def test_samples_are_taken_when_asked_for_and_at_the_end():
    states = DeviceStates([0, 2], lambda: lambda ordinal: {"sm_clock_mhz": 1000 + ordinal})
    states.ask()
    assert states._answered.wait(5)
    samples = states.close()
    assert [one["devices"] for one in samples] == [
        {"0": {"sm_clock_mhz": 1000}, "2": {"sm_clock_mhz": 1002}}
    ] * 2
    assert samples[0]["epoch_ns"] <= samples[1]["epoch_ns"]
    assert states.close() == samples


def test_a_driver_that_hangs_or_fails_does_not_hold_up_the_script():
    hang, begin = threading.Event(), time.monotonic()
    states = DeviceStates([0], lambda: lambda ordinal: hang.wait(30))
    states.ask()
    assert states.close() == []
    assert time.monotonic() - begin < 10
    hang.set()

    def broken():
        raise OSError("no driver")

    for find in (broken, lambda: None):
        assert DeviceStates([0], find).close() == []


def test_a_process_without_gpus_starts_no_thread_and_asks_nobody():
    before = threading.active_count()
    states = DeviceStates([], lambda: pytest.fail("asked"))
    states.ask()
    assert states.close() == []
    assert threading.active_count() == before


def test_without_either_library_nothing_is_known(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(device_facts.importlib, "import_module", missing)
    assert find_source() is None
