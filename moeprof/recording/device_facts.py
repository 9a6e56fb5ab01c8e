"""Question: which devices, how much of their memory, and which mesh? Asked of a running JAX."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax

from moeprof.recording import jax_private
from moeprof.recording.device_state import DeviceStates, find_source
from moeprof.recording.host_facts import host_memory
from moeprof.tables.compiled_memory import compiled_memory

PROGRAMS_TIME_S = 2.0  # spent on memory statistics of programs: each costs reading its HLO


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


def mesh_axes() -> dict[str, int] | None:
    """The largest mesh that any live array is laid out on: axis name -> size."""
    largest: dict[str, int] = {}
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
