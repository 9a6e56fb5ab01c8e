"""Question: how much memory has the device of a failure, and which other memory may have been full?

Its capacity, and what of it XLA's pool may take, is as the user states it, else as a captured run
tells: its devices, and the fraction in its environment. Other memory than the inside of that pool:
libraries beside it, the pool itself at the start, a TPU's place for programs, memory on the chip,
and the host's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moeprof.ingest.sources.run_record import read_meta
from moeprof.projector.oom import (
    COULD_NOT_GROW,
    FULL,
    HOST_MEMORY,
    IN_PIECES,
    NOT_LOADED,
    NOT_RESERVED,
    ON_CHIP,
    OUTSIDE_POOL,
    PINNED,
    SHARED,
    TENSOR,
    Explanation,
    Message,
    missing,
    sized,
    state_of,
)
from moeprof.specs.hardware import HardwareSpec, hardware_of

JAX_FRACTION = 0.75
"""What JAX gives XLA's pool on GPUs unless told otherwise (docs.jax.dev, GPU memory allocation)."""
_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True)
class Capacity:
    """Memory of the device, and what XLA's pool may take of it."""

    device_bytes: int
    pool_bytes: int


def capacity_of(hardware: HardwareSpec, fraction: float | None) -> Capacity:
    """The capacity of a device; without a fraction JAX's own, on TPU all of it."""
    default = 1.0 if hardware.vendor == "Google" else JAX_FRACTION
    share = default if fraction is None else fraction
    return Capacity(hardware.hbm_bytes, int(hardware.hbm_bytes * share))


def capacity_of_run(run: Path, fraction: float | None) -> Capacity | None:
    """The capacity that a captured run tells; None where its device is not one that is known."""
    meta = read_meta(run) if run.is_dir() else None
    for process in _rows(None if meta is None else meta.get("processes")):
        for device in _rows(process.get("devices")):
            known = hardware_of(str(device.get("kind", "")))
            if known is not None:
                return capacity_of(known, fraction or _recorded_fraction(run))
    return None


def _recorded_fraction(run: Path) -> float | None:
    """The fraction in the environment that capture kept of the first process."""
    for file in sorted((run / "host").glob("p*.json")):
        try:
            told = json.loads(file.read_text(encoding="utf-8"))["environment"][_VARIABLE]
            fraction = float(told)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if 0 < fraction <= 1:
            return fraction
    return None


def _rows(value: object) -> list[Mapping[str, object]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


_CHIP = {SHARED: "shared memory (LDS on AMD)", TENSOR: "tensor memory"}


def outside_pool(message: Message, capacity: Capacity | None) -> Explanation:
    """A library beside the pool, or the driver for it, found no room."""
    failure = message.failure
    size = f" {sized(failure.request_bytes)}" if failure.request_bytes else " memory"
    rest = ""
    if capacity is not None:
        room = capacity.device_bytes - capacity.pool_bytes
        rest = f": XLA's pool leaves {sized(room)} of {sized(capacity.device_bytes)}"
    return Explanation(
        OUTSIDE_POOL,
        f"{failure.who} found no room for{size} outside XLA's pool{rest}. A larger pool makes it "
        "worse",
        is_inside=False,
        needed_bytes=failure.request_bytes,
        held_bytes=message.pool.peak_bytes or message.pool.in_use_bytes,
        not_told=() if capacity else ("how much the pool leaves: give --hardware",),
    )


def not_reserved(message: Message) -> Explanation:
    """The device had no room for the pool itself."""
    size = message.failure.request_bytes
    return Explanation(
        NOT_RESERVED,
        f"the device had no room for XLA's pool itself ({sized(size)} asked): another process "
        "holds its memory, or the pool's fraction is too large",
        is_inside=None,
        needed_bytes=size,
        not_told=("who holds the device's memory: nvidia-smi or rocm-smi tells",),
    )


def not_loaded(message: Message) -> Explanation:
    """A TPU had no room for a program, which lies in one piece at the bottom of its memory."""
    failure = message.failure
    need, free, piece = failure.request_bytes, failure.free_bytes, failure.piece_bytes
    name = f" '{failure.program}'" if failure.program else ""
    is_in_pieces = need is not None and free is not None and need <= free
    there = "" if free is None else f"; {sized(free)} are free"
    if free is not None and piece is not None and piece < free:
        there += f", {sized(piece)} of it in one piece there"
    why = "arrays lie in between" if is_in_pieces else "arrays and loaded programs hold the rest"
    return Explanation(
        NOT_LOADED,
        f"the program{name} could not be loaded: it and its temporaries take {sized(need)} in one "
        f"piece at the bottom of the device's memory{there}, {why}",
        is_inside=True,
        needed_bytes=need,
        excess_bytes=missing(need, piece if is_in_pieces else free),
        state=IN_PIECES if is_in_pieces else FULL if free is not None else "",
    )


def on_chip(message: Message) -> Explanation:
    """A kernel needs more of a core's own memory than there is."""
    failure = message.failure
    needed, limit = failure.needed_bytes, failure.capacity_bytes
    name = _CHIP.get(failure.space, failure.space.upper())
    sizes = f"{sized(needed)} of {sized(limit)}" if needed is not None else "more than there is"
    return Explanation(
        ON_CHIP,
        f"a kernel needs {sizes} of on-chip memory ({name}): its block sizes, not the model's "
        "memory",
        is_inside=None,
        limit_bytes=limit,
        needed_bytes=needed,
        excess_bytes=missing(needed, limit),
    )


def on_host(message: Message) -> Explanation:
    """The host's memory, or XLA's pool of pinned memory there."""
    failure, pool = message.failure, message.pool
    request, limit, in_use = failure.request_bytes, pool.limit_bytes, pool.in_use_bytes
    state, excess = "", None
    what = "the host, not the device, ran out of memory"
    if limit is not None and in_use is not None:
        state = state_of(message, limit, in_use)
        free = max(limit - in_use, 0)
        excess = missing(request, free)
        what += (
            f": {sized(request)} were asked of XLA's pool of pinned memory, {sized(in_use)} of "
            f"{sized(limit)} were in use"
        )
        what += {
            IN_PIECES: f", and the {sized(free)} free are in no piece of that size",
            COULD_NOT_GROW: ", and the host gave it no more",
        }.get(state, "")
    elif failure.space == PINNED:
        state = COULD_NOT_GROW if failure.refused_bytes is not None else ""
        size = f" for {sized(request)}" if request else ""
        what += f": there was no room{size} in pinned memory"
        what += ", and the driver could not pin more" if state else ""
    return Explanation(
        HOST_MEMORY,
        f"{what} (pinned buffers of offloaded tensors and checkpoints are host memory)",
        is_inside=False,
        limit_bytes=limit,
        needed_bytes=request,
        excess_bytes=excess,
        state=state,
    )
