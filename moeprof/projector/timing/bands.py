"""Question: between which multiples of an estimate does what is measured lie?

From benchmarks/step_time.py. JAX on AMD: all 19 published throughputs that the rates come from lie
within a tenth. Elsewhere nothing was fitted: of 17 published runs of Megatron on NVIDIA none was
faster than estimated by more than a hundredth, and four in five took at most 2.1 times as long;
small models, whose launches a device waits for, took longest.
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.projector.setting import Setting


class Band(NamedTuple):
    """Multiples of the estimated seconds."""

    low: float
    high: float


_FITTED = Band(0.9, 1.1)
_NOT_FITTED = Band(1.0, 2.1)


def band_of(setting: Setting) -> Band:
    """The band of a setting's world and device."""
    is_fitted = setting.hardware.vendor == "AMD" and setting.world != "megatron"
    return _FITTED if is_fitted else _NOT_FITTED
