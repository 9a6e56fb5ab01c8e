"""Question: how much memory has the device of a failure, and what of it may XLA's pool take?

As the user states it, else as a captured run tells: its devices, and the fraction in its
environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moeprof.ingest.sources.run_record import read_meta
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
