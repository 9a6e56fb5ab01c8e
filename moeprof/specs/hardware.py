"""Question: what can a device do at most, as its vendor states it?

Figures are of one device as JAX counts it, a die or core where a package shows itself as two.
FLOP/s are those of matrix units without sparsity. Memory is what the runtime reports: below the
number on the box, since GB there are decimal, or the board keeps some for itself.
"""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib.resources import files

from moeprof.errors import SelectionError

_FP8 = re.compile(r"f8e\w+")
_FP4 = re.compile(r"f4e\w+")
_HALVES = frozenset({"bf16", "f16"})
_SAME_MEMORY = 0.01
"""Share in which memory may differ between devices of one model."""


@dataclass(frozen=True)
class HardwareSpec:
    """Peaks of one device; None where the vendor states none.

    ``peer_bytes_per_s`` is what it can send in one direction to all peers of the machine together,
    ``network_bytes_per_s`` to other machines through its share of the network cards of the usual
    server. ``domain`` counts the devices that the fast links join, ``host_devices`` those of one
    host: eight, but four of an NVL72's trays (NVIDIA, GB200 NVL72 data sheet) and of a host of TPU
    v4 and v5p (Google Cloud's pages on TPU versions). ``confidence`` is high where
    two sources agree or a log was seen, medium for one data sheet, low where figures differ.
    """

    key: str
    name: str
    vendor: str
    devices_per_package: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float | None
    fp4_flops_per_s: float | None
    peer_bytes_per_s: float
    network_bytes_per_s: float | None
    domain: int
    host_devices: int
    confidence: str
    source: str
    note: str

    @property
    def slice_devices(self) -> int:
        """Devices of a slice, as JAX reports them: of one host; of TPUs all that links join."""
        return self.domain if self.vendor == "Google" else self.host_devices

    def flops_per_s(self, dtype: str) -> float | None:
        """Peak of matrix products whose operands have this HLO element type; None if not known.

        f32 has none: whether a product ran in TF32 or f32 depends on flags that no trace records.
        """
        if dtype in _HALVES:
            return self.bf16_flops_per_s
        if _FP8.fullmatch(dtype):
            return self.fp8_flops_per_s
        return self.fp4_flops_per_s if _FP4.fullmatch(dtype) else None


def hardware_keys() -> tuple[str, ...]:
    """Keys that `load_hardware` knows, in the order of the table."""
    return tuple(spec.key for _, spec in _table())


def load_hardware(key: str) -> HardwareSpec:
    """A device by its key.

    Raises:
        SelectionError: there is no such key.
    """
    for _, spec in _table():
        if spec.key == key:
            return spec
    raise SelectionError(f"no hardware is named {key!r}; there are: {', '.join(hardware_keys())}")


def hardware_of(model: str) -> HardwareSpec | None:
    """A device by its model, as the profiler or JAX names it; None where it is not known."""
    name = model.strip()
    return next((spec for pattern, spec in _table() if pattern.fullmatch(name)), None)


def amd_device(cores: int, clock_khz: int, memory_bytes: int) -> str:
    """Name of the AMD device with so many compute units, this highest clock and memory.

    AMD's profiler names no device, but tells these. Empty where no device that is known has them,
    or several have.
    """
    found = [
        row["name"]
        for row in _rows()
        if row["vendor"] == "AMD"
        and (row["cores"], row["clock_MHz"]) == (str(cores), str(round(clock_khz / 1000)))
        and abs(memory_bytes / 2**30 / float(row["hbm_GiB"]) - 1) < _SAME_MEMORY
    ]
    return found[0] if len(found) == 1 else ""


@functools.cache
def _table() -> tuple[tuple[re.Pattern[str], HardwareSpec], ...]:
    return tuple((re.compile(row["model"], re.IGNORECASE), _spec(row)) for row in _rows())


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    text = files("moeprof.specs").joinpath("hardware.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _spec(row: dict[str, str]) -> HardwareSpec:
    return HardwareSpec(
        key=row["key"],
        name=row["name"],
        vendor=row["vendor"],
        devices_per_package=int(row["devices_per_package"]),
        hbm_bytes=round(float(row["hbm_GiB"]) * 2**30),
        hbm_bytes_per_s=float(row["hbm_TB_per_s"]) * 1e12,
        bf16_flops_per_s=float(row["bf16_TFLOPs"]) * 1e12,
        fp8_flops_per_s=_scaled(row["fp8_TFLOPs"], 1e12),
        fp4_flops_per_s=_scaled(row["fp4_TFLOPs"], 1e12),
        peer_bytes_per_s=float(row["peer_GB_per_s"]) * 1e9,
        network_bytes_per_s=_scaled(row["network_GB_per_s"], 1e9),
        domain=int(row["domain"]),
        host_devices=int(row["host_devices"]),
        confidence=row["confidence"],
        source=row["source"],
        note=row["note"],
    )


def _scaled(text: str, unit: float) -> float | None:
    return float(text) * unit if text else None
