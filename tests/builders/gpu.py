"""A profile of GPUs: executions, their launches on the host, and the kernels that these brought.

Times in ns. Step s begins at 10,000 s + 1,000, device d's launches 10 d later; a launch every 100,
its kernel 50 later, of 80.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from builders.hlo import computation, hlo_proto, op
from builders.xspace import Event, Line, Plane, Ref, event, host, line, metadata, xspace

EVERY, LAUNCH_EVERY, KERNEL = 10_000, 100, 80
STREAM = "Stream #7(Compute)"
Kept = Callable[[int, int, int], bool]
"""Whether the kernel of (device, step, place) was recorded."""


def program(ops: Sequence[str], opcode: str = "fusion") -> bytes:
    """A program that runs these ops in order."""
    return hlo_proto(
        computation("main", *(op(name, opcode, "f32[8]") for name in ops)),
        schedule={"main": tuple(ops)},
    )


def start_ns(device: int, step: int, place: int) -> int:
    """When a launch was made."""
    return 1_000 + EVERY * step + 10 * device + LAUNCH_EVERY * place


def number(device: int, step: int, place: int) -> int:
    """The correlation id of a launch."""
    return 1 + place + 100 * step + 10_000 * device


def kernels(device: int, steps: int, ops: Sequence[str], kept: Kept) -> list[Event]:
    """What a device recorded."""
    return [
        event(
            f"k_{name}",
            start_ns(device, step, place) + 50,
            KERNEL,
            hlo_op=Ref(name),
            program_id=7,
            correlation_id=number(device, step, place),
        )
        for step in range(steps)
        for place, name in enumerate(ops)
        if kept(device, step, place)
    ]


def thread(device: int, steps: int, ops: Sequence[str], *more: Event) -> Line:
    """The thread that launches on a device, one execution a step."""
    calls = [
        event(
            f"k_{name}",
            start_ns(device, step, place),
            20,
            correlation_id=number(device, step, place),
            device_id=device,
        )
        for step in range(steps)
        for place, name in enumerate(ops)
    ]
    runs = [
        event(
            f"[{device}] X LoadedExecutable::Execute (jit_step)",
            start_ns(device, step, 0) - 5,
            LAUNCH_EVERY * len(ops),
            _c=500 + step,
        )
        for step in range(steps)
    ]
    return line(f"py_xla_execute/{device}", *runs, *calls, *more)


def main_thread(steps: int) -> Line:
    """The thread that begins steps and executions."""
    spans = [event("train", 900 + EVERY * s, EVERY - 200, step_num=s) for s in range(steps)]
    runs = [
        event("X LoadedExecutable::Execute (jit_step)", 950 + EVERY * s, 100, run_id=500 + s)
        for s in range(steps)
    ]
    return line("python3", *spans, *runs)


def gpu_file(
    ops: Sequence[str],
    steps: int,
    devices: int,
    kept: Kept = lambda device, step, place: True,
    *,
    opcode: str = "fusion",
) -> bytes:
    """A profile whose devices recorded the kernels that are kept."""
    planes = []
    for device in range(devices):
        work = kernels(device, steps, ops, kept)
        planes.append(Plane(f"/device:GPU:{device}", (line(STREAM, *work),) if work else ()))
    threads = [thread(device, steps, ops) for device in range(devices)]
    return xspace(metadata(p7=program(ops, opcode)), *planes, host(main_thread(steps), *threads))
