"""Clocks, power, throttling and other processes of the GPUs while a window is open.

Asked of NVIDIA's NVML (``pynvml``) or of AMD SMI (``amdsmi``), where one of the two can be
imported; else nothing is known. A thread of its own asks, so that the script never waits for a
driver that does not answer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

LAST_WAIT_S = 0.25
"""How long the end of a window waits for an answer that is under way."""
MOST_SAMPLES = 64
# Bits of nvmlClocksEventReasons in nvml.h that slow a GPU down against the will of its user.
_NVIDIA_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


class Source(Protocol):
    """A library that knows the state of GPUs."""

    def __call__(self, ordinal: int) -> dict[str, Any]:
        """State of a visible GPU: what the library does not say is left out."""
        ...


class DeviceStates:
    """Samples the state of GPUs in the background, whenever asked to."""

    def __init__(self, ordinals: Sequence[int], find: Callable[[], Source | None]) -> None:
        """Sample these GPUs, counted as this process sees them; `find` finds the library."""
        self.samples: list[dict[str, Any]] = []
        self._ordinals = tuple(ordinals)
        self._find = find
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._is_closed = False
        if self._ordinals:
            threading.Thread(target=self._run, name="moeprof-states", daemon=True).start()

    def ask(self) -> None:
        """Take a sample soon; returns at once."""
        self._answered.clear()
        self._asked.set()

    def close(self) -> list[dict[str, Any]]:
        """Take a last sample, if that takes no longer than `LAST_WAIT_S`, and give all."""
        if self._ordinals and not self._is_closed:
            self.ask()
            self._answered.wait(LAST_WAIT_S)
        self._is_closed = True
        self._asked.set()
        return list(self.samples)

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # a driver may fail in any way: then nothing is known
            source = self._find()
            while source is not None and len(self.samples) < MOST_SAMPLES:
                self._asked.wait()
                self._asked.clear()
                if self._is_closed:
                    break
                self.samples.append(self._sample(source))
                self._answered.set()
        self._ordinals = ()
        self._answered.set()

    def _sample(self, source: Source) -> dict[str, Any]:
        devices = {str(ordinal): source(ordinal) for ordinal in self._ordinals}
        return {"epoch_ns": time.time_ns(), "devices": devices}


def find_source() -> Source | None:
    """NVML, else AMD SMI; None where neither answers."""
    for name, make in (("pynvml", nvidia), ("amdsmi", amd)):
        with contextlib.suppress(Exception):
            return make(importlib.import_module(name))
    return None


def nvidia(nvml: Any, environment: Mapping[str, str] = os.environ) -> Source:
    """NVML as a source.

    Raises:
        Exception: whatever it raises where there is no driver.
    """
    nvml.nvmlInit()
    visible = [part.strip() for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    is_new = hasattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons")
    asked_for = "Event" if is_new else "Throttle"
    reasons: Callable[[Any], int] = getattr(nvml, f"nvmlDeviceGetCurrentClocks{asked_for}Reasons")

    def handle_of(ordinal: int) -> Any:
        name = visible[ordinal] if any(visible) else str(ordinal)
        if name.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(name))
        return nvml.nvmlDeviceGetHandleByUUID(name)

    def state(ordinal: int) -> dict[str, Any]:
        handle = handle_of(ordinal)
        asked: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, 1),
            "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, 1),
            "power_mw": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
            "power_limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
            "throttled": lambda: _named(reasons(handle)),
            "others": lambda: others(
                [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            ),
        }
        return _answers(asked)

    return state


def amd(smi: Any) -> Source:
    """AMD SMI as a source.

    Raises:
        Exception: whatever it raises where there is no driver.
    """
    smi.amdsmi_init()
    handles = smi.amdsmi_get_processor_handles()

    def state(ordinal: int) -> dict[str, Any]:
        handle = handles[ordinal]
        clock = _answers({"": lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)})
        power = _answers({"": lambda: smi.amdsmi_get_power_info(handle)})
        asked: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: int(clock[""]["clk"]),
            "sm_clock_max_mhz": lambda: int(clock[""]["max_clk"]),
            "power_mw": lambda: 1000 * int(power[""]["current_socket_power"]),
            "others": lambda: others(
                [int(one["pid"]) for one in smi.amdsmi_get_gpu_process_list(handle)]
            ),
        }
        return _answers(asked)

    return state


def _answers(asked: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What is answered; a question that a device does not support is left out."""
    found = {}
    for name, ask in asked.items():
        with contextlib.suppress(Exception):
            found[name] = ask()
    return found


def _named(bits: int) -> list[str]:
    return [name for bit, name in _NVIDIA_REASONS.items() if bits & bit]


def others(pids: Sequence[int]) -> int:
    """How many processes with work on a GPU are neither this one nor started together with it.

    In a container the driver counts processes by numbers of its own: where this one is not among
    them, one of them is taken for it.
    """
    own = os.getpid()
    strange = [pid for pid in set(pids) if pid != own and not _is_sibling(pid)]
    return len(strange) if own in pids else max(0, len(strange) - 1)


def _is_sibling(pid: int) -> bool:
    """Whether one launcher started both: they share a process group."""
    try:
        return os.getpgid(pid) == os.getpgrp()
    except OSError:
        return False
