"""Question: which devices, how much of their memory, which mesh, and in which state are they?

Asked of a running JAX; the clocks, power, throttling and other processes of GPUs of NVIDIA's NVML
(``pynvml``) or of AMD SMI (``amdsmi``), where one of the two can be imported. A thread of its own
asks these, so that the script never waits for a driver that does not answer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from moeprof.recording import jax_private
from moeprof.recording.host_facts import host_memory
from moeprof.tables.compiled_memory import compiled_memory

PROGRAMS_TIME_S = 2.0  # spent on memory statistics of programs: each costs reading its HLO
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


def describe_process() -> dict[str, Any]:
    """Process index and count, platform, and the devices of this process."""
    return {
        "process_index": jax.process_index(),
        "process_count": jax.process_count(),
        "platform": jax.default_backend(),
        "global_devices": jax.device_count(),
        "devices": [
            {"id": device.id, "kind": device.device_kind, "platform": device.platform}
            for device in jax.local_devices()
        ],
    }


def memory_sample() -> dict[str, Any]:
    """Allocator statistics per local device (None where the backend has none) and of the host."""
    return {
        "host": host_memory(),
        "devices": {str(device.id): _device_memory(device) for device in jax.local_devices()},
    }


def _device_memory(device: jax.Device) -> dict[str, int] | None:
    try:
        stats = device.memory_stats()
    except Exception:  # some backends raise where others return None
        return None
    return None if stats is None else {name: int(value) for name, value in stats.items()}


def program_memory() -> list[dict[str, Any]]:
    """Memory that each live program asks for, largest temporary first, in bytes.

    None where the backend does not report it. Stops after `PROGRAMS_TIME_S`; newest programs come
    first, so the training step is in.
    """
    programs = []
    end = time.monotonic() + PROGRAMS_TIME_S
    for name, stats in jax_private.live_programs():
        if time.monotonic() > end:
            break
        programs.append({"program": name, **compiled_memory(stats).as_record()})
    return sorted(programs, key=lambda program: -(program["temp_bytes"] or 0))


def program_sizes() -> dict[str, int]:
    """Bytes of arguments, results and temporaries of the largest live program of each name."""
    sizes: dict[str, int] = {}
    for program in program_memory():
        parts = ("argument_bytes", "output_bytes", "temp_bytes")
        size = sum(program[part] or 0 for part in parts)
        name = str(program["program"]).removeprefix("jit_")
        sizes[name] = max(size, sizes.get(name, 0))
    return sizes


def mesh_axes(known: dict[str, int] | None = None) -> dict[str, int] | None:
    """The largest mesh that any live array is laid out on: axis name -> size.

    That which is `known` where none is larger: a script that ends has let go of its arrays.
    """
    largest = dict(known or {})
    with contextlib.suppress(Exception):  # arrays may be deleted by other threads meanwhile
        for array in _live_arrays():
            mesh = getattr(array.sharding, "mesh", None)
            if mesh is not None and (not largest or mesh.size > _size(largest)):
                largest = {str(axis): int(size) for axis, size in mesh.shape.items()}
    return largest or None


def _size(axes: dict[str, int]) -> int:
    product = 1
    for size in axes.values():
        product *= size
    return product


def _live_arrays() -> list[jax.Array]:
    list_arrays: Callable[[], list[jax.Array]] = jax.live_arrays
    return list_arrays()


def gpu_states() -> DeviceStates:
    """What samples the state of this process's GPUs; of nothing where it has none."""
    ordinals = [
        int(getattr(device, "local_hardware_id", None) or 0)
        for device in jax.local_devices()
        if device.platform == "gpu"
    ]
    return DeviceStates(ordinals, find_source)


def drain() -> None:
    """Wait until the devices have finished what was dispatched, as far as live arrays tell."""
    for array in _live_arrays():
        # An array donated between listing and waiting is finished business.
        with contextlib.suppress(Exception):
            array.block_until_ready()


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
