"""Question: for which GPUs can be compiled without one, and what does the compiler have to know?

Each ``KEY.txtpb`` here is XLA's GpuTargetConfigProto (xla/stream_executor/device_description.proto)
of a key of `specs.hardware`, with the sources of its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from moeprof.errors import SelectionError
from moeprof.specs.hardware import HardwareSpec

EXPERIMENTAL = ("mi300x", "mi355x")
"""Keys that need AMD's libraries, which no package index has (`requirements`)."""
_GPUS_PER_HOST = 8


@dataclass(frozen=True)
class Target:
    """A kind of GPU, and how many devices of it a program is for.

    ``topology`` counts slices × hosts × GPUs of a host, as JAX's GPU plugins read it.
    """

    key: str
    platform: str
    config: str
    devices: int
    topology: str


def target_keys() -> tuple[str, ...]:
    """Keys that `load_target` knows."""
    folder = files(__name__)
    return tuple(
        sorted(f.name.removesuffix(".txtpb") for f in folder.iterdir() if f.name.endswith("txtpb"))
    )


def load_target(hardware: HardwareSpec, devices: int) -> Target:
    """What the compiler has to know to compile for `devices` GPUs, 8 to a host.

    Raises:
        SelectionError: there is no such target, or no such number of devices.
    """
    if hardware.key not in target_keys():
        raise SelectionError(
            f"compile for {hardware.key}: its compiler cannot be had without the device; there "
            f"are: {', '.join(target_keys())}. The closed form has the others."
        )
    per_host = min(devices, _GPUS_PER_HOST)
    if devices < 1 or devices % per_host:
        raise SelectionError(
            f"compile for {devices} devices: expected 1 to {_GPUS_PER_HOST}, or a multiple of the "
            f"{_GPUS_PER_HOST} GPUs of a host; choose {max(devices // 8, 1) * 8} or "
            f"{(max(devices, 0) // 8 + 1) * 8}."
        )
    text = files(__name__).joinpath(f"{hardware.key}.txtpb").read_text(encoding="utf-8")
    platform = "rocm" if hardware.key in EXPERIMENTAL else "cuda"
    return Target(hardware.key, platform, text, devices, f"1x{devices // per_host}x{per_host}")
